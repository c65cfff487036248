"""Loads a server: `ensemble load`."""
