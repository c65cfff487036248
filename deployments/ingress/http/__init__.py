"""HTTP: one file for each protocol, and the server that dispatches to them."""
