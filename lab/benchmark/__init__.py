"""Compares this application with its unserved models and with other servers: `ensemble benchmark`."""
