"""A replica's end of HAProxy: each replica of the ingress answers HTTP and gRPC on Unix sockets of its own."""
