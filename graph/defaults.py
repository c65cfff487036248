"""Decides what a configuration leaves open, by where its nodes run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deployments.contract.member import MemberConfig, MemberInterface
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.cpus import available_cpus
from deployments.members.local import LocalMember
from models.sources import RepositoryAddress

if TYPE_CHECKING:
    from graph.config import EnsembleConfig


def sharing(config: EnsembleConfig) -> int:
    """How many members compute on the machine's cores."""
    return sum(isinstance(member, LocalMember) for member in config.members)


def make(
    member: MemberConfig, shared_by: int, repository: RepositoryAddress, agreed: MemberInterface, max_batch_size: int
) -> Node[Any, Probabilities]:
    """Make a member in the process where it runs; the threads that it leaves open are its share of the cores there."""
    if isinstance(member, LocalMember) and member.threads is None:
        member = member.model_copy(update={"threads": max(1, available_cpus() // max(1, shared_by))})
    return member.make(repository, agreed, max_batch_size)
