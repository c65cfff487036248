"""Tells every replica the loaded and unloaded members, by `user_config`.

The deployed configuration is read from Serve's REST interface, changed, and deployed again, as a user would do it. A
task on the head does so, because the interface listens there alone, and because one machine can hold a lock.
"""

import fcntl
import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import httpx
import ray
from ray.exceptions import RayError, RayTaskError

from deployments.contract.errors import ConfigurationError, Conflict, EnsembleError, NotFound, NotReady
from deployments.contract.names import INGRESS
from deployments.folder_permissions import make_private
from deployments.members.local import LocalMember
from deployments.ray_internals.dashboard import APPLICATIONS, ON_HEAD, authorization, url
from deployments.repository.errors import ModelError, Unreachable
from deployments.rpc.listener import place
from ensemble_features.loading.flow import NEEDED
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

TIMEOUT_S, LOOK_EVERY_S = 20.0, 0.2


class Change(NamedTuple):
    """A change of a member: it is unloaded, or loads a version, None for the highest."""

    name: str
    unload: bool = False
    version: int | None = None


def loadable(config: EnsembleConfig) -> dict[str, LocalMember]:
    """Return the members that can be loaded and unloaded, by name."""
    # Another model of a member, such as a canary, is compared with the version that its member began with.
    twins = config.twins
    return {each.name: each for each in config.voters if isinstance(each, LocalMember) and not twins[each.name]}


async def on_head(application: str, config: EnsembleConfig, agreed: EnsembleSignature, change: Change) -> int | None:
    """Check a change of an application's member and deploy it, by a task on the head; the version to be loaded.

    Raises:
        EnsembleError: see `ModelControl`.
    """
    # With its own process, which ends and frees what OpenVINO has read.
    task = ray.remote(num_cpus=0, resources=ON_HEAD, max_calls=1, max_retries=0)(_changed)
    try:
        loaded: int | None = await task.remote(application, config, agreed, change)
    except RayTaskError as err:
        if isinstance(err.cause, EnsembleError):
            raise err.cause from None
        raise
    except RayError as err:
        raise NotReady(f"no task runs on Ray's head now; try again ({err})") from err
    return loaded


def _changed(application: str, config: EnsembleConfig, agreed: EnsembleSignature, change: Change) -> int | None:
    version = None if change.unload else fitting(config, agreed, change)
    make_private(folder := place(application, "loading"))
    # No other change is made meanwhile, whichever replica it comes from.
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        deploy(url(), application, config, change._replace(version=version))
    return version


def deploy(dashboard: str, application: str, config: EnsembleConfig, change: Change) -> None:
    """Deploy the current configuration with a change, unless that changes nothing.

    Raises:
        NotReady: the dashboard, or Serve, does not accept it now.
        Conflict: see `redeployed`.
    """
    try:
        with httpx.Client(base_url=dashboard, headers=authorization(), timeout=TIMEOUT_S, trust_env=False) as client:
            deployed = _deployed(client, application)
            wanted = redeployed(deployed, application, config, change)
            if wanted != redeployable(deployed):
                client.put(APPLICATIONS, json=wanted).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as err:
        raise NotReady(
            f"Ray's dashboard, which changes deployments, does not take the change now; try again ({err})"
        ) from err


def fitting(config: EnsembleConfig, agreed: EnsembleSignature, change: Change) -> int:
    """Choose the version to load, and check that it can replace the served version.

    Raises:
        NotFound: there is no such version.
        Conflict: it can't be served.
        NotReady: it can't be fetched now.
    """
    # Imported in the process that needs it, with OpenVINO.
    from deployments.members.versioned import check

    member = loadable(config)[change.name]
    try:
        repository, model = member.repository_and_name(config.model_repository)
        available = repository.versions(model)
        version = change.version or max(available, default=0)
        if version not in available:
            raise NotFound(f"member {change.name!r} has no version {version or ''}; there are {available[-16:]}")
        found, interface = repository.find(model, version), agreed.interface(change.name)
        check(member, found, interface)
        member.load(found, interface, 1).close()
    except Unreachable as err:
        raise NotReady(f"member {change.name!r}: {err}") from err
    except (ConfigurationError, ModelError) as err:
        refused = f"version {change.version or 'that is the highest'} of member {change.name!r} is refused"
        raise Conflict(f"{refused}, and the current one stays: {err}") from err
    return version


def redeployable(deployed: Mapping[str, Any]) -> dict[str, Any]:
    """Turn Serve's report about itself into a configuration that changes nothing."""
    kept = {name: deployed.get(name) for name in ("proxy_location", "http_options", "grpc_options", "target_capacity")}
    configs = [each["deployed_app_config"] for each in deployed["applications"].values()]
    applications = [deepcopy(config) for config in configs if config is not None]
    return {**{name: value for name, value in kept.items() if value is not None}, "applications": applications}


def redeployed(deployed: Mapping[str, Any], application: str, config: EnsembleConfig, change: Change) -> dict[str, Any]:
    """Turn Serve's report about itself into the configuration with the change.

    Raises:
        Conflict: the quorum needs the member, or the application was not deployed by a configuration.
    """
    wanted = redeployable(deployed)
    found = next((each for each in wanted["applications"] if each.get("name") == application), None)
    if found is None:
        raise Conflict("the application was deployed by Python code; deploy it by a configuration file")
    ingress = _user_config(found, INGRESS)
    section = ingress.setdefault("loading", {})
    unloaded = {*section.get("unloaded", ()), change.name} - ({change.name} if not change.unload else set())
    if change.unload and len(unloaded) > config.spare:
        raise Conflict(f"member {change.name!r} can't be unloaded: {NEEDED}")
    section["unloaded"] = sorted(unloaded)
    if not change.unload:
        section["loaded"] = {**section.get("loaded", {}), change.name: change.version}
        member = loadable(config)[change.name]
        if member.placement == "inline":
            settings = ingress.setdefault("nodes", {}).setdefault(change.name, {})
        else:
            settings = _user_config(found, member.deployment_name)
        settings["version"] = change.version
    return wanted


def _user_config(application: dict[str, Any], deployment: str) -> dict[str, Any]:
    """Return the `user_config` of a deployment, to be changed; an empty one if there is none."""
    listed = application.setdefault("deployments", [])
    entry = next((each for each in listed if each["name"] == deployment), None)
    if entry is None:
        listed.append(entry := {"name": deployment})
    entry["user_config"] = config = dict(entry.get("user_config") or {})
    return config


def _deployed(client: httpx.Client, application: str) -> dict[str, Any]:
    """Read Serve's report about itself, as soon as the application is not being deployed.

    Raises:
        NotReady: it still is after `TIMEOUT_S`.
    """
    give_up = time.monotonic() + TIMEOUT_S
    while True:
        deployed: dict[str, Any] = client.get(APPLICATIONS).raise_for_status().json()
        # While it is deleted, or Serve starts again, Serve has no such application.
        status = deployed.get("applications", {}).get(application, {}).get("status", "NOT_STARTED")
        if status in {"RUNNING", "UNHEALTHY"}:
            return deployed
        if time.monotonic() > give_up:
            raise NotReady(f"the application is {status}; try again when it is RUNNING")
        time.sleep(LOOK_EVERY_S)
