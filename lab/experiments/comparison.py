"""The table of reported figures beside the figures that were measured here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ensemble_models.options import Table
from lab.reported import Reported

HEADS = ("reported by", "figure", "reported", "here")
# What a document may state with a figure; a sentence tells it where it is the same for all figures of a table.
STATED = ("model", "hardware")


def beside_reported(figures: Sequence[Reported], here: Mapping[str, str], differs: str) -> str:
    """Write a table of the figures that were measured, and what differs; empty if none was measured."""
    measured = [each for each in figures if each.subject in here]
    if not measured:
        return ""
    alike = [what for what in STATED if len({getattr(each, what) for each in measured}) == 1]
    lines = [(each.document.name, each.subject, _told(each, alike), here[each.subject]) for each in measured]
    stated = ", ".join(f"{what} {getattr(measured[0], what) or 'not stated'}" for what in alike)
    every = f"Every reported figure: {stated}. " if alike else ""
    lacking = [f"- {each.subject}: {_told(each, alike)}" for each in figures if each.subject not in here]
    absent = ["Reported, without a figure here (not measured, or too few requests):\n", *lacking, ""] if lacking else []
    table = Table(list(HEADS), lines, words=range(len(HEADS)))
    return "\n".join([table.markdown(), f"{every}Differences here: {differs}.\n", *absent])


def _told(each: Reported, alike: Collection[str]) -> str:
    """Write a figure with the model and the hardware that its document states, unless a sentence tells them."""
    stated = ", ".join(getattr(each, what) for what in STATED if what not in alike and getattr(each, what))
    return f"{each.text} ({stated})" if stated else each.text
