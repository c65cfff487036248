"""Decides what a configuration leaves open, by where its nodes run."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberConfig, MemberInterface
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.contract.settings import Cpus
from deployments.cpus import available_cpus, pin, share, usable
from deployments.members.local import LocalMember
from models.sources import RepositoryAddress

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

# How many replicas of this process' deployment share the cores that it computes on; set before its nodes are made.
REPLICAS: ContextVar[int] = ContextVar("REPLICAS", default=1)


@dataclass(frozen=True)
class Pinning:
    """The CPUs of a deployment's replicas: those of these numbers, or one part of all that nobody names for each.

    Attributes:
        cpus: by number, or `auto`.
        index: of the deployment, among those with `auto`.
        parts: how many those are.
        taken: the CPUs that other deployments name.
    """

    cpus: Cpus
    index: int = 0
    parts: int = 1
    taken: frozenset[int] = frozenset()

    def pin(self, rank: int, replicas: int) -> tuple[int, ...]:
        """Pin this process, one of so many replicas on this machine; raises ConfigurationError if it can't be."""
        given = usable()
        if self.cpus == "auto":
            free = [cpu for cpu in given if cpu not in self.taken] or given
            chosen = share(share(free, self.index, self.parts), rank % replicas, replicas)
        else:
            chosen = self.cpus
        try:
            pin(chosen)
        except OSError as err:
            raise ConfigurationError(f"cpus: {list(chosen)} can't be used; there are {list(given)}") from err
        return chosen


def pinning(config: EnsembleConfig, name: str) -> Pinning | None:
    """What the ingress, a member or a member's canary is pinned to, by its name; None for all CPUs."""
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
    """The threads of a member that leaves them open: so many that all of all replicas fit the cores, or one."""
    return max(1, cores // (max(1, members) * max(1, replicas)))


def fixed(member: MemberConfig, agreed: Agreement) -> MemberConfig:
    """The member with the version that was the highest when the members agreed, unless it names one or its policy does.

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
