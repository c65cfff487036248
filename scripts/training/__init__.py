"""Trains the models in the box: `ensemble train`. Needs the `train` extra (PyTorch)."""
