"""The nodes of an application, and where each runs: in its caller's process, or in a Serve deployment of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from deployments import combiner, labeler
from deployments.contract.member import MemberConfig, MemberInterface
from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.contract.settings import Placement
from deployments.cpus import REPLICAS, Pinning, available_cores
from deployments.members.local import LocalMember
from deployments.repository.address import RepositoryAddress
from deployments.transformer import transformer
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


def pinning(config: EnsembleConfig, name: str) -> Pinning | None:
    """Return the CPUs of the ingress, or of a model, by its name; None for all CPUs. A member's models share CPUs."""
    pinned, name = config.cpus_of, config.owner_of(name)
    if name not in pinned:
        return None
    automatic = [each for each, cpus in pinned.items() if cpus == "auto"]
    taken = frozenset(cpu for cpus in pinned.values() if cpus != "auto" for cpu in cpus)
    if pinned[name] != "auto":
        return Pinning(pinned[name])
    return Pinning("auto", automatic.index(name), len(automatic), taken)


def sharing(config: EnsembleConfig, member: MemberConfig) -> int:
    """Count the members that compute at the same time on the same cores as a member."""
    if config.in_turn:
        return 1
    computing = [each for each in config.members if isinstance(each, LocalMember)]
    if getattr(member, "cpus", None) is not None:
        return 1
    if config.cpus is not None and member.placement == "inline":
        return sum(each.placement == "inline" for each in computing)
    return sum(each.cpus is None for each in computing)


def share_of_threads(cores: int, members: int, replicas: int) -> int:
    """Return the threads of a member that leaves them open: the threads of all replicas fit the cores; at least one."""
    return max(1, cores // (max(1, members) * max(1, replicas)))


def fixed(member: MemberConfig, agreed: EnsembleSignature) -> MemberConfig:
    """Fix a member's version as that which was chosen when the signatures were read, unless its policy is another.

    A replica that starts later finds the same version, whatever has been added to the repository.
    """
    version = agreed.versions[member.name]
    if isinstance(member, LocalMember) and member.version_policy == "fixed" and isinstance(version, int):
        return member.pinned(version)
    return member


def make(
    member: MemberConfig, shared_by: int, repository: RepositoryAddress, agreed: MemberInterface, max_batch_size: int
) -> Node[Any, Probabilities]:
    """Make a member in the process where it runs; the threads that it leaves open are its share of the cores there."""
    if isinstance(member, LocalMember) and member.threads is None:
        threads = share_of_threads(available_cores(), shared_by, REPLICAS.get())
        member = member.model_copy(update={"threads": threads})
    return member.make(repository, agreed, max_batch_size)


# Makes a node; called in the process where it is to run.
Factory = Callable[[], Node[Any, Any]]


@dataclass(frozen=True)
class NodeSpec:
    """A node of the application.

    Attributes:
        deployment: the name of its Serve deployment, and of its service in a trace.
        operation: the name of its work in a trace.
        placement: where it runs.
        make: makes it there.
        pinning: the CPUs of a separate node; None for all.
        stand_ins: make the node in the ingress, for as long as no replica of a separate one answers: as usual, and for
            images that may have ended a replica. None for a node that takes too much memory or time for that.
    """

    deployment: str
    operation: str
    placement: Placement
    make: Factory
    pinning: Pinning | None = None
    stand_ins: tuple[Factory, Factory] | None = None


def node_specs(config: EnsembleConfig, agreed: EnsembleSignature) -> dict[str, NodeSpec]:
    """Specify every node of the application, by the name that `user_config` and the graph's composition use."""
    decoding = config.transformer
    limits = transformer.TransformerSettings.part_of(decoding)
    decode = partial(transformer.JpegTransformer, limits, agreed.wanted, decoding.threads)
    method, graded = combiner.CombinerSettings.part_of(config.combiner), config.in_turn
    combine = partial(combiner.Combiner, method, config.weights, graded=graded)
    label = partial(labeler.Labeler, labeler.LabelerSettings.part_of(config.labeler), agreed.labels)

    def predict(member: MemberConfig) -> Factory:
        gets = agreed.interface(member.name)
        shared_by, limit = sharing(config, member), config.ingress.max_batch_size
        return partial(make, fixed(member, agreed).plain(), shared_by, config.model_repository, gets, limit)

    return {
        TRANSFORMER: NodeSpec(
            TRANSFORMER,
            transformer.OPERATION,
            decoding.placement,
            partial(decode, decoding.isolate),
            stand_ins=(partial(decode, decoding.isolate), partial(decode, "all")),
        ),
        **{
            m.name: NodeSpec(m.deployment_name, m.operation, m.placement, predict(m), pinning(config, m.name))
            for m in config.nodes
        },
        COMBINER: NodeSpec(
            COMBINER, combiner.OPERATION, config.combiner.placement, combine, stand_ins=(combine, combine)
        ),
        LABELER: NodeSpec(LABELER, labeler.OPERATION, config.labeler.placement, label, stand_ins=(label, label)),
    }
