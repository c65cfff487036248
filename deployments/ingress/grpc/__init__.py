"""gRPC: one file for each service."""
