"""Reads what other servers are configured with, so that this one can serve the same models: `ensemble init --from`."""
