"""HTTP: the server that dispatches requests by their paths, the bodies that it reads, and the OpenAPI document."""
