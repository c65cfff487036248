"""Brings what is loaded and unloaded to every replica: by `user_config`, which Serve tells each, and later ones.

The configuration that is deployed is asked of Serve's REST interface, changed, and deployed again, as a user would.
That is done by a task on the head, beside Ray's dashboard: it listens there alone, and one machine can have a lock.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.exceptions import RayError, RayTaskError
from ray.experimental.internal_kv import _internal_kv_get

from deployments.contract.errors import ConfigurationError, Conflict, EnsembleError, NotFound, NotReady
from graph.capabilities.loading.loadable import Loadable
from graph.capabilities.loading.loading import Change
from graph.capabilities.loading.settings import NEEDED
from graph.names import INGRESS
from graph.ray_internals.dashboard import APPLICATIONS, authorization
from models.errors import ModelError, Unreachable

# What Ray gives the head alone.
ON_HEAD = {"node:__internal_head__": 0.001}
TIMEOUT_S, LOOK_EVERY_S = 20.0, 0.2


class Redeploying:
    """Changes what is deployed."""

    def __init__(self, application: str, loadable: Loadable) -> None:
        """Set the application's name, and what can be changed of it."""
        self._application, self._loadable = application, loadable

    async def __call__(self, change: Change) -> int | None:
        """Have Serve tell every replica; the version that is to be loaded.

        Raises:
            EnsembleError: see `Loading`.
        """
        # What it has read of OpenVINO goes with its process.
        task = ray.remote(num_cpus=0, resources=ON_HEAD, max_calls=1, max_retries=0)(_changed)
        try:
            loaded: int | None = await task.remote(self._application, self._loadable, change)
        except RayTaskError as err:
            if isinstance(err.cause, EnsembleError):
                raise err.cause from None
            raise
        except RayError as err:
            raise NotReady(f"no task runs on Ray's head now; try again ({err})") from err
        return loaded


def _changed(application: str, loadable: Loadable, change: Change) -> int | None:
    """Check a change, and deploy it; runs on the head."""
    version = None if change.unload else fitting(loadable, change)
    dashboard = (_internal_kv_get("dashboard", namespace="dashboard") or b"").decode()
    context = ray.get_runtime_context()
    # No other change is made meanwhile, whichever replica it comes from.
    with (Path(context.get_temp_dir()) / context.get_session_name() / "loading.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        deploy(f"http://{dashboard}", application, loadable, change._replace(version=version))
    return version


def deploy(dashboard: str, application: str, loadable: Loadable, change: Change) -> None:
    """Deploy what is deployed with a change, unless that changes nothing.

    Raises:
        NotReady: the dashboard, or Serve, does not take it now.
        Conflict: see `redeployed`.
    """
    try:
        with httpx.Client(base_url=dashboard, headers=authorization(), timeout=TIMEOUT_S, trust_env=False) as client:
            deployed = _deployed(client, application)
            wanted = redeployed(deployed, application, loadable, change)
            if wanted != redeployable(deployed):
                client.put(APPLICATIONS, json=wanted).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as err:
        raise NotReady(f"Ray's dashboard, by which Serve is told, does not take it now; try again ({err})") from err


def fitting(loadable: Loadable, change: Change) -> int:
    """The version to load, once it is known that it can take the place of the one that is served.

    Raises:
        NotFound: there is no such version.
        Conflict: it can't be served.
        NotReady: it can't be fetched now.
    """
    # Imported where it runs, with OpenVINO.
    from deployments.members.swapping import try_out

    config, agreed = loadable.members[change.name]
    try:
        repository, model = config.opened(loadable.repository)
        available = repository.versions(model)
        version = change.version or max(available, default=0)
        if version not in available:
            raise NotFound(f"member {change.name!r} has no version {version or ''}; there are {available[-16:]}")
        known = change.served.isdecimal() and int(change.served) in available
        current = repository.find(model, int(change.served)) if known else None
        try_out(config, repository.find(model, version), agreed, current)
    except Unreachable as err:
        raise NotReady(f"member {change.name!r}: {err}") from err
    except (ConfigurationError, ModelError) as err:
        told = f"version {change.version or 'that is the highest'} of member {change.name!r} is refused"
        raise Conflict(f"{told}, and what is served goes on: {err}") from err
    return version


def redeployable(deployed: Mapping[str, Any]) -> dict[str, Any]:
    """What Serve tells of itself, as a configuration that changes nothing."""
    kept = {name: deployed.get(name) for name in ("proxy_location", "http_options", "grpc_options", "target_capacity")}
    configs = [each["deployed_app_config"] for each in deployed["applications"].values()]
    applications = [deepcopy(config) for config in configs if config is not None]
    return {**{name: value for name, value in kept.items() if value is not None}, "applications": applications}


def redeployed(deployed: Mapping[str, Any], application: str, loadable: Loadable, change: Change) -> dict[str, Any]:
    """What Serve tells of itself, as the configuration that it is to have.

    Raises:
        Conflict: the quorum needs the member, or the application was not deployed by a configuration.
    """
    wanted = redeployable(deployed)
    found = next((each for each in wanted["applications"] if each.get("name") == application), None)
    if found is None:
        raise Conflict("the application was deployed by Python code; deploy it by a configuration file")
    ingress = _user_config(found, INGRESS)
    told = ingress.setdefault("loading", {})
    unloaded = {*told.get("unloaded", ()), change.name} - ({change.name} if not change.unload else set())
    if change.unload and len(unloaded) > loadable.spare:
        raise Conflict(f"member {change.name!r} can't be unloaded: {NEEDED}")
    told["unloaded"] = sorted(unloaded)
    if not change.unload:
        told["loaded"] = {**told.get("loaded", {}), change.name: change.version}
        member, _ = loadable.members[change.name]
        if member.placement == "inline":
            settings = ingress.setdefault("nodes", {}).setdefault(change.name, {})
        else:
            settings = _user_config(found, member.deployment_name)
        settings["version"] = change.version
    return wanted


def _user_config(application: dict[str, Any], deployment: str) -> dict[str, Any]:
    """The `user_config` of a deployment, to be changed; it gets one if it has none."""
    listed = application.setdefault("deployments", [])
    entry = next((each for each in listed if each["name"] == deployment), None)
    if entry is None:
        listed.append(entry := {"name": deployment})
    entry["user_config"] = config = dict(entry.get("user_config") or {})
    return config


def _deployed(client: httpx.Client, application: str) -> dict[str, Any]:
    """What Serve tells of itself, once the application is not being deployed.

    Raises:
        NotReady: it still is.
    """
    give_up = time.monotonic() + TIMEOUT_S
    while True:
        deployed: dict[str, Any] = client.get(APPLICATIONS).raise_for_status().json()
        status = deployed["applications"][application]["status"]
        if status in {"RUNNING", "UNHEALTHY"}:
            return deployed
        if time.monotonic() > give_up:
            raise NotReady(f"the application is {status}; try again when it is RUNNING")
        time.sleep(LOOK_EVERY_S)
