"""The replicas of an application, which Serve's public status counts by state, but not by machine."""

from __future__ import annotations

from collections import Counter

from ray.serve._private.common import ReplicaState
from ray.serve.context import _get_global_client


def replicas(application: str) -> dict[str, Counter[tuple[str, str]]]:
    """By deployment, the number of replicas by their state, such as `RUNNING`, and their machine's address."""
    client = _get_global_client()
    if client is None:
        return {}
    deployments = client.get_serve_details()["applications"][application]["deployments"]
    return {
        name: Counter((ReplicaState(each["state"]).value, each["node_ip"] or "") for each in deployment["replicas"])
        for name, deployment in deployments.items()
    }
