"""Trains the models in the box: `python -m scripts.train`. Needs the `train` extra (PyTorch)."""
