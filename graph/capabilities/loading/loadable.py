"""What can be loaded and unloaded, as the configuration has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.contract.member import Agreed
from deployments.ingress.access import Operators
from deployments.members.openvino import OpenVino
from models.sources import Where

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig


@dataclass(frozen=True)
class Loadable:
    """The members that can be loaded and unloaded.

    Attributes:
        operators: who may.
        members: by name, the configuration of each such member, and what it has to do with.
        spare: how many members the quorum can do without.
        repository: where their models are.
    """

    operators: Operators
    members: Mapping[str, tuple[OpenVino, Agreed]]
    spare: int
    repository: Where


def loadable(config: EnsembleConfig, agreed: Agreement) -> Loadable:
    """What a configuration lets operators load and unload."""
    members = {
        member.name: (member, Agreed(agreed.preprocessing[member.name], agreed.labels))
        for member in config.voters
        # What is tried beside a member is compared with the version that it began with.
        if isinstance(member, OpenVino) and member.canary is None
    }
    spare = len(config.voters) - (config.ensemble.quorum or len(config.voters))
    return Loadable(config.access.operators, members, spare, config.model_repository)
