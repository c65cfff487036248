"""Loading and unloading members while the application serves, alike for every protocol.

What is loaded is a setting, so that one `user_config` tells it to every replica, and to those that start later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from deployments.contract.answer import Answer
from deployments.contract.errors import (
    DeadlineExceeded,
    EnsembleError,
    Forbidden,
    InvalidParameter,
    NotFound,
    NotReady,
)
from deployments.ingress.access import Operators
from deployments.ingress.member import MemberIngress, Offer
from deployments.ingress.open_inference.ensemble import MODEL
from graph.capabilities.loading.gates import Gates

LOOK_EVERY_S = 0.1


class Change(NamedTuple):
    """What is wanted of a member.

    Attributes:
        name: the member's.
        unload: whether it is asked no more.
        version: to be loaded; None for the highest that there is.
        served: the version that it serves.
    """

    name: str
    unload: bool = False
    version: int | None = None
    served: str = ""


# Brings a change to every replica; the version that is to be loaded.
Changes = Callable[[Change], Awaitable[int | None]]


class Loading:
    """Loads and unloads members for those who may."""

    def __init__(
        self,
        operators: Operators,
        gates: Gates,
        members: Mapping[str, tuple[MemberIngress, Offer]],
        versions: Mapping[str, str],
        changes: Changes,
    ) -> None:
        """Set who may.

        Args:
            operators: the names of their keys, or everybody.
            gates: stands before the members that can be loaded.
            members: every member that is offered, by name.
            versions: what each of them serves.
            changes: brings a change to every replica.
        """
        self._operators, self._gates, self._members = operators, gates, members
        self._versions, self._changes = versions, changes
        self._changing = asyncio.Lock()

    def permitted(self, name: str) -> Loading:
        """This, for who shows the key of that name, empty for none; raises Forbidden unless they may load."""
        if self._operators != "anyone" and name not in self._operators:
            raise Forbidden(f"the key {name!r} may not load and unload members; access.operators lists those that may")
        return self

    async def load(self, name: str, version: int | None = None) -> None:
        """Have every replica of a member serve a version, by default the highest that there is.

        It is done when the member has answered by that version.

        Raises:
            NotFound: there is no such member, or no such version.
            InvalidParameter: it is nothing that can be loaded.
            Conflict: the version can't be served; the one before goes on.
            NotReady: Serve can't be told now.
            DeadlineExceeded: it has not answered by that version in its time.
        """
        loaded = await self._change(Change(name, False, version, self._versions.get(name, "")))
        ingress, offer = self._members[name]
        pixels = bytes(offer.size[0] * offer.size[1] * 3)

        async def answers() -> bool:
            try:
                [outcome] = await ingress.classify([pixels])
            except EnsembleError:
                return False
            return isinstance(outcome, Answer) and outcome.classification.model_versions.get(name) == loaded

        await self._until(name, answers, f"member {name!r} has not answered by version {loaded}")

    async def unload(self, name: str) -> None:
        """Have a member asked no more, by any replica; it is done when this one asks it no more.

        Raises:
            NotFound: there is no such member.
            InvalidParameter: it is nothing that can be unloaded.
            Conflict: the quorum needs it.
            NotReady: Serve can't be told now.
            DeadlineExceeded: this replica has not been told in its time.
        """
        await self._change(Change(name, True))

        async def knows() -> bool:
            return name in self._gates.settings.unloaded

        await self._until(name, knows, f"member {name!r} is still asked")

    async def _change(self, change: Change) -> int | None:
        name = change.name
        if name == MODEL:
            raise InvalidParameter(f"{MODEL!r} is made of its members; load and unload those")
        if name not in self._members:
            raise NotFound(f"there is no member {name[:80]!r}; the members are {sorted(self._members)}")
        if name not in self._gates.names:
            raise InvalidParameter(
                f"member {name!r} can't be loaded; it is on another server, a shadow, or has a canary"
            )
        if self._changing.locked():
            raise NotReady("another member is being loaded or unloaded; try again when that is done")
        async with self._changing:
            return await self._changes(change)

    async def _until(self, name: str, done: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        timeout_ms = self._members[name][0].settings.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not await done():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise DeadlineExceeded(
                f"Serve was told, but {otherwise} within {timeout_ms} ms; the log says why"
            ) from None
