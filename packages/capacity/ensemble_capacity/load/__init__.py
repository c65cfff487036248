"""Loads a server and reports what it holds: `ensemble load`."""
