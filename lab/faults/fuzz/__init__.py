"""A fuzzer for HTTP and one for gRPC, and a runner that measures what each input costs a server."""
