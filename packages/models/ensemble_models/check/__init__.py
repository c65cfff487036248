"""Measures top-1 of models and ensembles: `ensemble check`."""
