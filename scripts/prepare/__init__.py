"""Brings models into the repository: `python -m scripts.prepare`."""
