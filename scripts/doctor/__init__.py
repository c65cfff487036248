"""Checks this machine and a configuration: `ensemble doctor`."""
