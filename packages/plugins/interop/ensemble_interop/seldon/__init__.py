"""Seldon's v1 API: the ensemble as a graph without a name, over REST and gRPC."""
