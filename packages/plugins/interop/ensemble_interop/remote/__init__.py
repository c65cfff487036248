"""Members that another model server runs: the node that calls it, and a client for each of its protocols."""
