"""Calls to a node in another process, by Unix sockets or by Serve's handle."""
