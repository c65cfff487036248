"""Decides what a configuration leaves open, by where its nodes run."""

from __future__ import annotations

from typing import Any

from deployments.contract.member import MemberConfig, MemberInterface
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.cpus import REPLICAS, Pinning, available_cpus
from deployments.members.local import LocalMember
from deployments.repository.sources import RepositoryAddress
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


def pinning(config: EnsembleConfig, name: str) -> Pinning | None:
    """Return the CPUs of the ingress, a member or a member's canary, by its name; None for all CPUs."""
    pinned = config.cpus_of
    name = next((member for member, canary in config.canaries.items() if canary.name == name), name)
    if name not in pinned:
        return None
    automatic = [each for each, cpus in pinned.items() if cpus == "auto"]
    taken = frozenset(cpu for cpus in pinned.values() if cpus != "auto" for cpu in cpus)
    if pinned[name] != "auto":
        return Pinning(pinned[name])
    return Pinning("auto", automatic.index(name), len(automatic), taken)


def sharing(config: EnsembleConfig, member: MemberConfig) -> int:
    """How many members compute on the cores that a member computes on."""
    computing = [each for each in config.members if isinstance(each, LocalMember)]
    if getattr(member, "cpus", None) is not None:
        return 1
    if config.cpus is not None and member.placement == "inline":
        return sum(each.placement == "inline" for each in computing)
    return sum(each.cpus is None for each in computing)


def share_of_threads(cores: int, members: int, replicas: int) -> int:
    """Return the threads of a member that leaves them open: those of all replicas fit the cores; at least one."""
    return max(1, cores // (max(1, members) * max(1, replicas)))


def fixed(member: MemberConfig, agreed: EnsembleSignature) -> MemberConfig:
    """Fix a member's version as the highest when the signatures were read, unless it names one or its policy does.

    A replica that starts later finds the same version, whatever has been added to the repository.
    """
    if isinstance(member, LocalMember) and member.version is None and member.version_policy == "fixed":
        return member.model_copy(update={"version": agreed.versions[member.name]})
    return member


def make(
    member: MemberConfig, shared_by: int, repository: RepositoryAddress, agreed: MemberInterface, max_batch_size: int
) -> Node[Any, Probabilities]:
    """Make a member in the process where it runs; the threads that it leaves open are its share of the cores there."""
    if isinstance(member, LocalMember) and member.threads is None:
        threads = share_of_threads(available_cpus(), shared_by, REPLICAS.get())
        member = member.model_copy(update={"threads": threads})
    return member.make(repository, agreed, max_batch_size)
