"""What must hold between a Serve config and the arguments of its application; for every command alike.

The schema of a section refuses what contradicts itself within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.contract.errors import ConfigurationError
from deployments.contract.names import INGRESS
from deployments.entry_points import FEATURES, did_you_mean, names, not_installed
from deployments.ingress.protocol import FUNCTION, functions
from graph.schema import EnsembleConfig
from graph.user_config import check_user_config

# Serve's own `max_replicas` where `num_replicas` is `auto`.
MOST_OF_AUTO = 100
# Fields of Serve's that only its own proxy reads, and what to do instead behind HAProxy.
OF_THE_PROXY = {
    "http_options.root_path": "remove it; a proxy before this server may strip a prefix",
    "http_options.request_timeout_s": "set ingress.timeout_ms in args",
    "http_options.keep_alive_timeout_s": "remove it; HAProxy keeps an idle connection for 65 s",
    "grpc_options.request_timeout_s": "set ingress.timeout_ms in args",
}


@dataclass(frozen=True)
class Seen:
    """What the rules of a Serve config look at besides the config.

    Attributes:
        config: the arguments of the application.
        own_front: whether HAProxy is in front, and not Serve's proxy.
    """

    config: EnsembleConfig
    own_front: bool = True


def check_arguments(config: EnsembleConfig) -> None:
    """Raise ConfigurationError for arguments that contradict each other."""
    of_features = (str(fault) for fault in config.faults() if fault.is_refused)
    if found := [*_contradictions(config), *of_features]:
        raise ConfigurationError(*found)


def _contradictions(config: EnsembleConfig) -> Iterator[str]:
    if config.combiner.weights and (twice := [each.name for each in config.members if _has(each, "weight")]):
        yield f"members: {twice[0]!r}: weight: combiner.weights has the weights of all members; remove one of them"


def _has(section: Any, field: str) -> bool:
    return field in section.model_fields_set and getattr(section, field) is not None


def check_application(serve: Mapping[str, Any], application: Mapping[str, Any], seen: Seen) -> None:
    """Raise ConfigurationError where a Serve config contradicts the arguments of one of its applications."""
    check_entries(application, seen.config)
    if found := [*(_of_the_proxy(serve) if seen.own_front else ()), *_services(serve, seen)]:
        raise ConfigurationError(*found)
    check_user_config(application, seen.config)


def _of_the_proxy(serve: Mapping[str, Any]) -> Iterator[str]:
    for path, remedy in OF_THE_PROXY.items():
        section, _, field = path.partition(".")
        if (serve.get(section) or {}).get(field) is not None:
            yield f"{path}: only Serve's proxy reads it, and HAProxy is in front; {remedy}"


def _services(serve: Mapping[str, Any], seen: Seen) -> Iterator[str]:
    """Yield a problem for each wrong entry of `grpc_servicer_functions`."""
    given = (serve.get("grpc_options") or {}).get("grpc_servicer_functions") or []
    for position, function in enumerate(given):
        if problem := "it stands there twice" if function in given[:position] else _problem_of_service(function, seen):
            yield f"grpc_options.grpc_servicer_functions.{position}: {function}: {problem}"


def _problem_of_service(function: str, seen: Seen) -> str:
    known, prefix = functions(), FUNCTION.format("")
    is_ours, name = function.startswith(prefix), function.removeprefix(prefix)
    if function not in known and (is_ours or seen.own_front):
        why = "no installed protocol has it" if is_ours else "HAProxy forwards to no other service"
        return f"{why}; the functions are {', '.join(known)}{not_installed()}"
    if name in set(names(FEATURES)) - seen.config.features.keys():
        return f"its calls are all refused without `{name}` in args; set that, or remove the entry"
    if not seen.own_front and not all(each.behind_serve for each in functions().get(function, ())[:1]):
        return (
            "Serve's proxy finds a method by its name, which another service has, too; remove the entry, or set "
            "`front: direct`"
        )
    return ""


def check_entries(application: Mapping[str, Any], config: EnsembleConfig) -> None:
    """Raise ConfigurationError for an entry of `deployments` that belongs to no deployment."""
    names = [INGRESS, *(name for name, placement in config.placements.items() if placement == "separate")]
    for name in (str(entry.get("name")) for entry in application.get("deployments") or []):
        if name in set(config.placements) - set(names):
            raise ConfigurationError(
                f"deployments: {name!r} has `placement: inline`, so it runs in the process of {INGRESS} and has no "
                "deployment; remove the entry, or place the node `separate`"
            )
        if name not in names:
            meant = did_you_mean(name, names)
            raise ConfigurationError(f"deployments: no deployment is called {name!r}{meant}; there are {names}")
    _check_cpus(application, config)


def _check_cpus(application: Mapping[str, Any], config: EnsembleConfig) -> None:
    """Raise ConfigurationError for several replicas that would compute on the same named CPUs."""
    owners = {member.deployment_name: member.name for member in config.members}
    owners |= {twin.deployment_name: name for name, twins in config.twins.items() for twin in twins}
    for entry in application.get("deployments") or []:
        name, fixed = str(entry.get("name")), entry.get("num_replicas")
        most = (entry.get("autoscaling_config") or {}).get("max_replicas", MOST_OF_AUTO if fixed == "auto" else fixed)
        is_named = config.cpus_of.get(owners.get(name, name), "auto") != "auto"
        if is_named and isinstance(most, int) and most > 1:
            raise ConfigurationError(
                f"deployments: {name!r} may have {most} replicas, which would all compute on the same `cpus`; "
                "set `cpus: auto`, and each has its own, or one replica"
            )
