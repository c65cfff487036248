"""The contract between nodes, protocols and the graph: batches, answers, errors, settings."""
