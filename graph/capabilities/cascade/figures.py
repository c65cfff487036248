"""What `/stats` reports of a cascade, by the member that an image may be answered by the last of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from graph.capabilities.proportion import Proportion, proportion

if TYPE_CHECKING:
    from graph.capabilities.cascade.audit import Audit


class ExitStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member at which a cascade may end."""

    exit_at: Annotated[float, Meta(description="the threshold in force, but for the load")]
    at_most: Annotated[float | None, Meta(description="the share of exits that may differ; absent for no bound")] = None
    differs: Annotated[
        Proportion | None, Meta(description="the audited exits that all members answer otherwise; absent for no audit")
    ] = None


def exit_stats(members: Sequence[str], exit_at: Sequence[float], audit: Audit | None) -> dict[str, ExitStats]:
    """The figures by member."""
    if audit is None:
        return {member: ExitStats(threshold) for member, threshold in zip(members, exit_at, strict=True)}
    return {
        member: ExitStats(threshold, audit.at_most, proportion(*counted))
        for member, threshold, counted in zip(members, audit.exit_at, audit.counted(), strict=True)
    }
