"""Where Serve listens for HTTP requests, which it has no public way to read from a replica."""

from __future__ import annotations

from ray.serve.context import _get_global_client


def http_host() -> str:
    """Serve's `http_options.host`; empty where Serve does not run."""
    client = _get_global_client()
    return "" if client is None else client.http_config.host or ""
