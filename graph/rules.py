"""What a configuration says and can't have: a table of fields that can't act, and why; for every command alike.

A rule is about a field that the user has written. The schema of a section refuses what contradicts itself within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberConfig
from deployments.contract.names import INGRESS
from deployments.contract.sections import Fault
from deployments.entry_points import FEATURES, did_you_mean, names, not_installed
from deployments.ingress.protocol import FUNCTION, functions
from deployments.members.local import LocalMember
from deployments.pipeline.member_client import PATIENT_SHARE, QuorumSettings
from deployments.repository.address import split_model
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature
from graph.user_config import check_user_config, with_user_config

# A JPEG of 64x64 pixels has about 2 KB, and few images that are worth a request have less than this.
SMALL_IMAGE_BYTES = 4096
# Serve's own `max_replicas` where `num_replicas` is `auto`.
MOST_OF_AUTO = 100


@dataclass(frozen=True)
class Seen:
    """What rules look at besides the object that has the field.

    Attributes:
        config: the arguments of the application.
        agreed: what the models' signatures have in common; None before they are read.
        own_front: whether HAProxy is in front, and not Serve's proxy.
    """

    config: EnsembleConfig
    agreed: EnsembleSignature | None = None
    own_front: bool = True

    @property
    def classes(self) -> int:
        """How many classes the models have; 0 before they are read."""
        return 0 if self.agreed is None else len(self.agreed.labels)

    @property
    def is_direct(self) -> bool:
        """Whether neither requests nor batches take Serve's handles on one machine."""
        return self.own_front and self.config.edges == "direct"


Verdict = Literal["warned", "refused"]


class Rule(NamedTuple):
    """A field that can't act.

    Attributes:
        field: its path; `*` is each entry of a list.
        holds: whether it can't act, by the object that has the field.
        why: the reason; or it is computed, as `holds` is.
        remedy: what to do.
        verdict: whether the configuration is served with a warning, or refused.
    """

    field: str
    holds: Callable[[Any, Seen], bool]
    why: str | Callable[[Any, Seen], str]
    remedy: str
    verdict: Verdict = "warned"


def _asks_in_background(config: EnsembleConfig) -> bool:
    """Tell whether a feature may call members about images without deadlines, which `patience_ms` alone bounds."""
    return any(each.section.at in {QuorumSettings.at, MemberConfig.at} for each in config.owned)


def _protocol(function: str) -> str:
    """Return the name of the protocol whose function `grpc_servicer_functions` lists."""
    return function.removeprefix(FUNCTION.format(""))


def _unknown(function: str, seen: Seen) -> str:
    known = functions()
    is_ours = function.startswith(FUNCTION.format(""))
    if function in known or not (is_ours or seen.own_front):
        return ""
    why = "no installed protocol has it" if is_ours else "HAProxy forwards to no other service"
    return f"{function}, and {why}; the functions are {', '.join(known)}{not_installed()}"


def _missing_feature(function: str, seen: Seen) -> str:
    name = _protocol(function)
    is_off = name in set(names(FEATURES)) - seen.config.features.keys()
    return f"{function}, whose calls are all refused without `{name}` in args" if is_off else ""


def _not_behind_serve(function: str, seen: Seen) -> str:
    if seen.own_front or all(each.behind_serve for each in functions().get(function, ())[:1]):
        return ""
    return f"{function}, and Serve's proxy finds a method by its name alone, which another service has, too"


def _of_functions(fault: Callable[[str, Seen], str], remedy: str, verdict: Verdict = "warned") -> Rule:
    """Make a rule about the entries of `grpc_servicer_functions`; `fault` returns an entry's fault, empty for none."""

    def faults(options: Mapping[str, Any], seen: Seen) -> str:
        # Serve's schema refuses anything but a list of texts.
        given = options["grpc_servicer_functions"]
        listed = sorted(map(str, given)) if isinstance(given, list) else ()
        return "; ".join(filter(None, (fault(each, seen) for each in listed)))

    return Rule(
        "grpc_options.grpc_servicer_functions",
        lambda options, seen: bool(faults(options, seen)),
        lambda options, seen: f"it lists {faults(options, seen)}",
        remedy,
        verdict,
    )


def _of_sent(name: str) -> Rule:
    return Rule(
        f"members.*.{name}",
        lambda member, _: getattr(member, "as_sent", None) is True,
        "with `as_sent: true` the member gets the images as clients sent them, and no pixels",
        "remove it, or `as_sent`",
    )


def _of_single_batches(name: str) -> Rule:
    return Rule(
        f"ingress.{name}",
        lambda ingress, _: ingress.max_batch_size == 1,
        "a batch has one image, by `max_batch_size: 1`",
        "remove it, or raise max_batch_size",
    )


# Of `args`: the objects are those of `EnsembleConfig`.
ARGUMENTS = (
    Rule(
        "model_repository",
        lambda config, _: (
            not any(
                isinstance(each, LocalMember) and split_model(each.model or each.name)[0] is None
                for each in config.nodes
            )
        ),
        "no member's model is taken from there",
        "remove it, or name a model of it",
    ),
    Rule(
        "edges",
        lambda config, _: "separate" not in config.placements.values(),
        "every node is `inline`, and none is called over an edge",
        "remove it, or place a node `separate`",
    ),
    Rule(
        "ensemble.patience_ms",
        lambda _, seen: not (seen.config.spare or _asks_in_background(seen.config)),
        "every member must answer, so each is waited for until the request's deadline",
        "set ensemble.quorum below the number of members",
    ),
    Rule(
        "ensemble.patience_ms",
        lambda asking, seen: (
            asking.patience_ms >= PATIENT_SHARE * seen.config.ingress.timeout_ms
            and not _asks_in_background(seen.config)
        ),
        f"a member is waited for {PATIENT_SHARE:g} of a request's time at most, which is `ingress.timeout_ms` unless "
        "the request sets its own",
        "lower it, or raise ingress.timeout_ms",
    ),
    Rule(
        "members.*.deployment",
        lambda member, _: member.placement == "inline",
        "an inline member has no deployment, and this is the name of its service in traces alone",
        "remove it, or place the member `separate`",
    ),
    Rule(
        "members.*.weight",
        lambda _, seen: bool(seen.config.combiner.weights),
        "combiner.weights has the weights of all members",
        "remove it, or combiner.weights",
    ),
    Rule(
        "members.*.timeout_ms",
        lambda member, seen: member.timeout_ms >= seen.config.ingress.timeout_ms,
        "a request that sets no time of its own is over before, by `ingress.timeout_ms`",
        "lower it, or raise ingress.timeout_ms",
    ),
    Rule(
        "members.*.max_batch_size",
        lambda member, seen: (member.max_batch_size or 0) > seen.config.ingress.max_batch_size,
        "no batch is as large, by `ingress.max_batch_size`",
        "lower it, or raise ingress.max_batch_size",
    ),
    Rule(
        "members.*.border",
        lambda member, _: member.resize != "letterbox",
        "only `resize: letterbox` leaves a border",
        "remove it, or set `resize: letterbox`",
    ),
    *map(_of_sent, ("size", "crop_ratio", "resize", "interpolation", "border", "layout", "color", "mean", "scale")),
    Rule(
        "members.*.datatype",
        lambda member, _: getattr(member, "as_sent", None) is True,
        "with `as_sent: true` the input takes texts of bytes",
        "remove it, or `as_sent`",
    ),
    Rule(
        "labeler.top_k",
        lambda labeler, seen: 0 < seen.classes < labeler.top_k,
        "there are fewer classes, and an answer lists them all",
        "lower it",
    ),
    *map(_of_single_batches, ("batch_wait_ms", "refill_share", "max_batch_bytes")),
    Rule(
        "ingress.max_batch_size",
        lambda ingress, _: ingress.max_batch_size > ingress.max_in_flight,
        "fewer images are in flight at a time, by `max_in_flight`",
        "lower it, or raise max_in_flight",
    ),
    Rule(
        "ingress.max_parts",
        lambda ingress, _: ingress.max_parts > ingress.max_in_flight,
        "fewer images are in flight at a time, by `max_in_flight`",
        "lower it, or raise max_in_flight",
    ),
    Rule(
        "ingress.fair_by",
        lambda ingress, seen: ingress.fair_by == "key" and seen.config.access.keys is None,
        "there are no keys, so all clients are one",
        "set access.keys, or `fair_by: address`",
    ),
    Rule(
        "ingress.max_request_bytes",
        lambda ingress, _: ingress.max_request_bytes < SMALL_IMAGE_BYTES,
        "hardly an image is as small, and all others are refused",
        "raise it; an image of 224x224 pixels has 10 to 50 KB",
    ),
    Rule(
        "transformer.max_image_bytes",
        lambda transformer, seen: transformer.max_image_bytes > seen.config.ingress.max_request_bytes,
        "a request has at most `ingress.max_request_bytes`",
        "lower it, or raise ingress.max_request_bytes",
    ),
)

# Of a Serve config: the objects are mappings.
SERVE = (
    *(
        Rule(field, lambda _, seen: seen.own_front, "only Serve's proxy reads it, and HAProxy is in front", remedy)
        for field, remedy in (
            ("http_options.root_path", "remove it; a proxy before this server may strip a prefix"),
            ("http_options.request_timeout_s", "set ingress.timeout_ms in args"),
            ("http_options.keep_alive_timeout_s", "remove it; HAProxy keeps an idle connection for 65 s"),
            ("grpc_options.request_timeout_s", "set ingress.timeout_ms in args"),
        )
    ),
    _of_functions(_unknown, "remove it, or set `front: serve` for a function of your own", "refused"),
    _of_functions(_missing_feature, "set that, or remove the entry"),
    _of_functions(_not_behind_serve, "remove the entry, or set `front: direct`"),
    *(
        Rule(
            f"{path}logging_config.enable_access_log",
            lambda logging, seen: logging["enable_access_log"] and seen.is_direct,
            "Serve logs calls by its handles, and neither requests nor batches take them",
            "remove it; docs/observability.md has what is counted and traced instead",
        )
        for path in ("", "applications.*.", "applications.*.deployments.*.")
    ),
    Rule(
        "applications.*.deployments.*.max_queued_requests",
        lambda entry, seen: seen.own_front if entry.get("name") == INGRESS else seen.config.edges == "direct",
        "it bounds calls by Serve's handles alone, and on one machine neither requests nor batches take them",
        "set ingress.max_in_flight in args",
    ),
)


def _written(root: Any, path: list[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each object whose field at a path was set by the user, and the field's path there."""
    name, *below = path
    if name == "*":
        for position, each in enumerate(root or ()):
            own = each.get("name") if isinstance(each, Mapping) else each.name
            yield from _written(each, below, f"{prefix}{own or position}.")
        return
    written = root.model_fields_set if isinstance(root, BaseModel) else root if isinstance(root, Mapping) else ()
    if name not in written:
        return
    value = root[name] if isinstance(root, Mapping) else getattr(root, name)
    if value is None:
        return
    if below:
        yield from _written(value, below, f"{prefix}{name}.")
    else:
        yield f"{prefix}{name}", root


def _found(rules: Iterable[Rule], verdict: str, root: Any, seen: Seen) -> Iterator[Fault]:
    for rule in rules:
        if rule.verdict == verdict:
            for path, owner in _written(root, rule.field.split(".")):
                if rule.holds(owner, seen):
                    why = rule.why if isinstance(rule.why, str) else rule.why(owner, seen)
                    yield Fault(f"{path}: {why}", rule.remedy, verdict == "refused")


def check_arguments(config: EnsembleConfig) -> None:
    """Raise ConfigurationError for arguments that contradict each other."""
    of_features = (fault for fault in config.faults() if fault.is_refused)
    _refuse([*_found(ARGUMENTS, "refused", config, Seen(config)), *of_features])


def check_application(serve: Mapping[str, Any], application: Mapping[str, Any], seen: Seen) -> None:
    """Raise ConfigurationError where a Serve config contradicts the arguments of one of its applications."""
    check_entries(application, seen.config)
    _refuse(_found(SERVE, "refused", {**serve, "applications": [application]}, seen))
    check_user_config(application, seen.config)


def warnings_of_arguments(config: EnsembleConfig, agreed: EnsembleSignature | None = None) -> Iterator[Fault]:
    """Find the arguments that do nothing."""
    yield from _found(ARGUMENTS, "warned", config, Seen(config, agreed))
    yield from (fault for fault in config.faults(agreed) if not fault.is_refused)


def warnings_of_application(serve: Mapping[str, Any], application: Mapping[str, Any], seen: Seen) -> Iterator[Fault]:
    """Find the fields that do nothing in a Serve config, beside one application of it or in its arguments."""
    yield from warnings_of_arguments(with_user_config(application, seen.config), seen.agreed)
    yield from _found(SERVE, "warned", {**serve, "applications": [application]}, seen)


def _refuse(found: Iterable[Fault]) -> None:
    if messages := [str(each) for each in found]:
        raise ConfigurationError("; ".join(messages))


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
