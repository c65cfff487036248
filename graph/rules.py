"""What must hold between a Serve config and the arguments of its application; for every command alike.

The schema of a section refuses what contradicts itself within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deployments.combiner import CombinerSettings
from deployments.contract.errors import ConfigurationError
from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from deployments.contract.settings import Placement, Schema, changed, flat
from deployments.entry_points import FEATURES, did_you_mean, names, not_installed
from deployments.ingress.protocol import FUNCTION, functions
from deployments.labeler import LabelerSettings
from deployments.members.local import LocalMember
from deployments.members.versioned import VersionSettings
from deployments.transformer.transformer import TransformerSettings
from graph.schema import EnsembleConfig

# Serve's own `max_replicas` where `num_replicas` is `auto`.
MOST_OF_AUTO = 100
# Fields of Serve's that only its own proxy reads, and what to do instead behind HAProxy.
OF_THE_PROXY = {
    "http_options.root_path": "remove it; a proxy before this server may strip a prefix",
    "http_options.request_timeout_s": "set ingress.timeout_ms in args",
    "http_options.keep_alive_timeout_s": "remove it; HAProxy keeps an idle connection for 65 s",
    "grpc_options.request_timeout_s": "set ingress.timeout_ms in args",
}


def check_application(
    serve: Mapping[str, Any], application: Mapping[str, Any], config: EnsembleConfig, own_front: bool
) -> None:
    """Raise ConfigurationError where a Serve config contradicts the arguments of one of its applications.

    With `own_front` HAProxy is in front, and not Serve's proxy.
    """
    entries = application.get("deployments") or []
    for entry in entries:
        _check_name(str(entry.get("name")), config)
        _check_cpus(entry, config)
    if found := [*(_of_the_proxy(serve) if own_front else ()), *_services(serve, config, own_front)]:
        raise ConfigurationError(*found)
    for entry in entries:
        check_user_config(str(entry.get("name")), entry.get("user_config") or {}, config)


def _of_the_proxy(serve: Mapping[str, Any]) -> Iterator[str]:
    for path, remedy in OF_THE_PROXY.items():
        section, _, field = path.partition(".")
        if (serve.get(section) or {}).get(field) is not None:
            yield f"{path}: only Serve's proxy reads it, and HAProxy is in front; {remedy}"


def _services(serve: Mapping[str, Any], config: EnsembleConfig, own_front: bool) -> Iterator[str]:
    """Yield a problem for each wrong entry of `grpc_servicer_functions`."""
    given = (serve.get("grpc_options") or {}).get("grpc_servicer_functions") or []
    for position, function in enumerate(given):
        is_twice = function in given[:position]
        if problem := "it stands there twice" if is_twice else _problem_of_service(function, config, own_front):
            yield f"grpc_options.grpc_servicer_functions.{position}: {function}: {problem}"


def _problem_of_service(function: str, config: EnsembleConfig, own_front: bool) -> str:
    known, prefix = functions(), FUNCTION.format("")
    is_ours, name = function.startswith(prefix), function.removeprefix(prefix)
    if function not in known and (is_ours or own_front):
        why = "no installed protocol has it" if is_ours else "HAProxy forwards to no other service"
        return f"{why}; the functions are {', '.join(known)}{not_installed()}"
    if name in set(names(FEATURES)) - config.features.keys():
        return f"its calls are all refused without `{name}` in args; set that, or remove the entry"
    if not own_front and not all(each.behind_serve for each in functions().get(function, ())[:1]):
        return (
            "Serve's proxy finds a method by its name, which another service has, too; remove the entry, or set "
            "`front: direct`"
        )
    return ""


def _check_name(name: str, config: EnsembleConfig) -> None:
    """Raise ConfigurationError for an entry of `deployments` that belongs to no deployment."""
    known = [INGRESS, *(each for each, placement in config.placements.items() if placement == "separate")]
    if name in known:
        return
    if name in config.placements:
        raise ConfigurationError(
            f"deployments: {name!r} has `placement: inline`, so it runs in the process of {INGRESS} and has no "
            "deployment; remove the entry, or place the node `separate`"
        )
    meant = did_you_mean(name, known)
    raise ConfigurationError(f"deployments: no deployment is called {name!r}{meant}; there are {known}")


def _check_cpus(entry: Mapping[str, Any], config: EnsembleConfig) -> None:
    """Raise ConfigurationError for several replicas that would compute on the same named CPUs."""
    name, fixed = str(entry.get("name")), entry.get("num_replicas")
    most = (entry.get("autoscaling_config") or {}).get("max_replicas", MOST_OF_AUTO if fixed == "auto" else fixed)
    models = {model.deployment_name: model.name for model in config.nodes}
    pinned = config.cpus_of.get(config.owner_of(models.get(name, name)), "auto")
    if pinned != "auto" and isinstance(most, int) and most > 1:
        raise ConfigurationError(
            f"deployments: {name!r} may have {most} replicas, which would all compute on the same `cpus`; "
            "set `cpus: auto`, and each has its own, or one replica"
        )


def check_user_config(deployment: str, change: Any, config: EnsembleConfig) -> None:
    """Raise ConfigurationError for a `user_config` that a replica would refuse by its fields alone."""
    try:
        if not isinstance(change, Mapping):
            raise ConfigurationError("a mapping of field to value is needed")
        nodes = _nodes(config)
        if deployment == INGRESS:
            inline = {name: settings for name, (placement, settings) in nodes.items() if placement == "inline"}
            _check_ingress(change, config.ingress, {"nodes": inline, **_of_features(config)})
        elif change:
            node = next((each.name for each in config.nodes if each.deployment_name == deployment), deployment)
            changed(node, change, {node: nodes[node][1]} if node in nodes else {})
    except ConfigurationError as err:
        raise ConfigurationError(f"deployments: {deployment!r}: user_config: {err}") from err


def _check_ingress(change: Mapping[str, Any], ingress: Schema, sections: Mapping[str, Any]) -> None:
    # A section of one node is its settings, and of several their settings by name.
    groups = [name for name, section in sections.items() if isinstance(section, Mapping)]
    own = {name: fields for name, fields in change.items() if name not in sections}
    changes = {name: fields for name, fields in change.items() if name in sections}
    initial = {INGRESS: ingress, **flat(sections, groups)}
    for name, fields in flat({INGRESS: own, **changes}, groups).items():
        changed(name, fields, initial)


def _of_features(config: EnsembleConfig) -> dict[str, Any]:
    """Return the initial settings of the sections of features, by section, or by section and name."""
    found: dict[str, Any] = {}
    for _, owner, section in config.owned:
        for name, settings in section.live(owner).items():
            found[name] = {**found.get(name, {}), **settings} if isinstance(settings, Mapping) else settings
    return found


def _nodes(config: EnsembleConfig) -> dict[str, tuple[Placement, Schema]]:
    """Return the placement and the settings of each node that has any settings, by the node's name."""
    local = [member for member in config.nodes if isinstance(member, LocalMember)]
    return {
        TRANSFORMER: (config.transformer.placement, TransformerSettings.part_of(config.transformer)),
        COMBINER: (config.combiner.placement, CombinerSettings.part_of(config.combiner)),
        LABELER: (config.labeler.placement, LabelerSettings.part_of(config.labeler)),
        **{member.name: (member.placement, VersionSettings()) for member in local},
    }
