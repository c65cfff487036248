"""Trains the bundled models: `ensemble train`. Needs the `train` extra (PyTorch)."""
