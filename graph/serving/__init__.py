"""The two Serve deployments: the door, and a node of its own. Each imports only what its process needs."""
