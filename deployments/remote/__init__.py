"""Members on other model servers: the node that asks one, and the ways to it."""
