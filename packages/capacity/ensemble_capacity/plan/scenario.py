"""The scenario of a prediction: how a configuration places its nodes, batches images and computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from deployments.contract.settings import Placement as NodePlacement
from deployments.cpus import available_cpus
from deployments.ingress.settings import IngressSettings
from deployments.members.local import LocalMember
from graph.placement import share_of_threads, sharing
from scripts import configuration
from scripts.errors import ScriptError


@dataclass(frozen=True)
class Scenario:
    """A configuration, as far as it decides how fast it is.

    Attributes:
        ingress: its settings.
        members: the threads of each, by name, in the order of a cascade if there is one.
        decoding: threads of the transformer.
        placements: of each node, by name; the transformer, combiner and labeler by the names of their deployments.
        replicas: of the ingress and of separate nodes; one where it is not here.
        streams: that the configuration names, by member.
        exits: of a cascade: for each member but the last, the share of the images it gets that it answers.
    """

    ingress: IngressSettings
    members: Mapping[str, int]
    decoding: int
    placements: Mapping[str, NodePlacement]
    replicas: Mapping[str, int] = field(default_factory=dict)
    exits: tuple[float, ...] | None = None
    streams: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def separate(self) -> list[str]:
        """The nodes that have processes of their own, by name."""
        return [name for name, placement in self.placements.items() if placement == "separate"]

    def count(self, name: str) -> int:
        """Count the replicas of the ingress, or of a separate node."""
        return self.replicas.get(name, 1)


def scenario(
    application: Mapping[str, Any], exits: Sequence[float] | None = None, cores: int | None = None
) -> Scenario:
    """Read the scenario of an application of a Serve config.

    Args:
        application: the application.
        exits: of its cascade; see `Scenario.exits`.
        cores: of the machine that it is for; None for this one.

    Raises:
        ConfigurationError: it can't be served.
        ScriptError: it can't be predicted; the message says why.
    """
    config = configuration.check_arguments(application)
    for member in config.nodes:
        if not isinstance(member, LocalMember):
            raise ScriptError(f"members: {member.name!r} runs on a server of its own, which can't be profiled here")
    if config.shadows or config.canaries:
        raise ScriptError("members: shadows and canaries can't be predicted; leave them out of the plan")
    usable = cores or available_cpus()
    names = [member.name for member in config.members]
    if (cascade := config.ensemble.cascade) is not None:
        names = list(cascade.order)
        if exits is None or len(exits) != len(names) - 1:
            raise ScriptError(
                f"--exits: name {len(names) - 1}, the share of the images it gets that each member of the cascade but "
                "the last answers; `ensemble check` and /stats report it"
            )
    elif exits:
        raise ScriptError("--exits is for a cascade, and this configuration has none")
    replicas = configuration.replicas_of(application, config)
    threads = {}
    for member in config.members:
        assert isinstance(member, LocalMember)
        of_member = replicas.get(member.name if member.placement == "separate" else INGRESS, 1)
        threads[member.name] = member.threads or share_of_threads(usable, sharing(config, member), of_member)
    return Scenario(
        config.ingress,
        {name: threads[name] for name in names},
        config.transformer.threads or usable,
        {
            TRANSFORMER: config.transformer.placement,
            **{member.name: member.placement for member in config.members},
            COMBINER: config.combiner.placement,
            LABELER: config.labeler.placement,
        },
        replicas,
        tuple(exits or ()) if cascade is not None else None,
        {member.name: getattr(member, "streams", None) for member in config.members},
    )


def every_member(config: Mapping[str, Any]) -> Scenario:
    """Read the scenario of a config's application in which every member gets every image; see `asking_all`."""
    application = next(configuration.ours(config))
    cascade = configuration.check_arguments(application).ensemble.cascade
    return scenario(application, None if cascade is None else (0.0,) * (len(cascade.order) - 1))
