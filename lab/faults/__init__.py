"""Faults, done to a running server under load, and what its clients saw of them."""
