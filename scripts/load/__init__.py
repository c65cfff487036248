"""Loads a server: `python -m scripts.load`."""
