"""How a node in another process is called: one file for each way."""
