"""UnloadGate before the members: a member that is unloaded gets no batch."""

from collections.abc import Collection
from typing import Annotated, TypeVar

from pydantic import Field

from deployments.contract.batch import NO_SCORES, Batch
from deployments.contract.errors import ConfigurationError, EnsembleError, Unloaded
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.contract.settings import Name, Schema
from ensemble_serving.answer import Version

NEEDED = "the quorum needs it; load another member first, or lower ensemble.quorum"

P = TypeVar("P")


class LoadingSettings(Schema):
    """The members that clients have loaded and unloaded."""

    unloaded: tuple[Name, ...] = Field((), max_length=64, description="members that are not called")
    loaded: dict[Name, Annotated[int, Field(ge=1)]] = Field(
        {}, max_length=64, description="the version that was loaded last, by member"
    )


class UnloadGate:
    """Stands before the members, and fails the images for a member that is unloaded.

    Attributes:
        names: the members that can be loaded and unloaded.
    """

    def __init__(
        self,
        names: Collection[str],
        spare: int,
        versions: dict[str, str],
        pinned: dict[str, Version],
        left_out: dict[str, EnsembleError],
    ) -> None:
        """Set those members, how many members the quorum can do without, and where changes are noted; see `Site`."""
        self.names, self._spare = names, spare
        self._versions, self._pinned, self._left_out = versions, pinned, left_out
        self._settings = LoadingSettings()

    @property
    def settings(self) -> LoadingSettings:
        """Which members are loaded."""
        return self._settings

    @settings.setter
    def settings(self, settings: LoadingSettings) -> None:
        self._settings = settings
        self._versions.update({name: str(version) for name, version in settings.loaded.items()})
        self._pinned.clear()
        self._pinned.update(settings.loaded)
        self._left_out.clear()
        self._left_out.update({name: Unloaded(f"member {name!r} is unloaded") for name in settings.unloaded})

    def check(self, settings: LoadingSettings) -> None:
        """Raise ConfigurationError if there is no such member, or the quorum needs one that is unloaded."""
        if unknown := sorted({*settings.unloaded, *settings.loaded} - set(self.names)):
            raise ConfigurationError(f"{unknown[0]!r} can't be loaded; these members can: {sorted(self.names)}")
        if len(set(settings.unloaded)) > self._spare:
            raise ConfigurationError(f"unloaded: {list(settings.unloaded)}: {NEEDED}")

    def before(self, name: str, node: Node[P, Probabilities]) -> Node[P, Probabilities]:
        """Put a member behind its gate."""

        async def gate(batch: Batch[P]) -> Batch[Probabilities]:
            if (error := self._left_out.get(name)) is None:
                return await node(batch)
            failed = batch.fail(dict.fromkeys(range(len(batch.items)), error))
            return Batch(NO_SCORES, failed.items)

        return gate
