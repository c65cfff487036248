"""Reads the configurations of other servers, so that this server can serve the same models: `ensemble init --from`."""
