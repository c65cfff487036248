"""Measures top-1 of models and ensembles: `python -m scripts.evaluate`."""
