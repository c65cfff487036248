"""Compares this application with what its models allow and with other servers: `ensemble benchmark`."""
