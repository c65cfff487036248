"""Brings models into the repository: `ensemble prepare`."""
