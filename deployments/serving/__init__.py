"""The two Serve deployments: the ingress, and a node of its own. Each imports only what its process needs."""
