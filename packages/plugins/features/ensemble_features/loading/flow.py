"""UnloadGate before the members: a member that is unloaded gets no batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, TypeVar

from deployments.contract.batch import NO_SCORES, Batch
from deployments.contract.errors import ConfigurationError, Unloaded
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from graph.sections import LoadingSettings

NEEDED = "the quorum needs it; load another member first, or lower ensemble.quorum"

P = TypeVar("P")


class UnloadGate:
    """Stands before the members, and fails the images for a member that is unloaded.

    Attributes:
        names: the members that can be loaded and unloaded.
    """

    def __init__(
        self, names: Collection[str], spare: int, versions: MutableMapping[str, str], loaded: MutableMapping[str, int]
    ) -> None:
        """Set those members, how many members the quorum can do without, and where versions are noted; see `Site`."""
        self.names, self._spare, self._versions, self._loaded = names, spare, versions, loaded
        self._settings = LoadingSettings()

    @property
    def settings(self) -> LoadingSettings:
        """Which members are loaded."""
        return self._settings

    @settings.setter
    def settings(self, settings: LoadingSettings) -> None:
        self._settings = settings
        self._versions.update({name: str(version) for name, version in settings.loaded.items()})
        self._loaded.clear()
        self._loaded.update(settings.loaded)

    def check(self, settings: LoadingSettings) -> None:
        """Raise ConfigurationError if there is no such member, or the quorum needs one that is unloaded."""
        if unknown := sorted({*settings.unloaded, *settings.loaded} - set(self.names)):
            raise ConfigurationError(f"{unknown[0]!r} can't be loaded; these members can: {sorted(self.names)}")
        if len(set(settings.unloaded)) > self._spare:
            raise ConfigurationError(f"unloaded: {list(settings.unloaded)}: {NEEDED}")

    def put_before(self, nodes: Mapping[str, Node[Any, Any]]) -> dict[str, Node[Any, Any]]:
        """Put each member that can be unloaded behind its gate; returns all nodes by name."""
        return {name: self._before(name, node) if name in self.names else node for name, node in nodes.items()}

    def _before(self, name: str, node: Node[P, Probabilities]) -> Node[P, Probabilities]:
        async def gate(batch: Batch[P]) -> Batch[Probabilities]:
            if name not in self._settings.unloaded:
                return await node(batch)
            error = Unloaded(f"member {name!r} is unloaded")
            failed = batch.fail(dict.fromkeys(range(len(batch.items)), error))
            return Batch(NO_SCORES, failed.items)

        return gate
