"""Where Serve listens for HTTP requests."""

from __future__ import annotations

from ray.serve.context import _get_global_client

from deployments.contract.hosts import is_loopback


def listens_on_loopback() -> bool:
    """Whether only this machine can reach the service, by Serve's `http_options.host`."""
    # Serve has no public way to read it from a replica.
    client = _get_global_client()
    return client is not None and is_loopback(client.http_config.host or "")
