"""What nodes, protocols and the graph agree on: what travels, what is answered, what can go wrong."""
