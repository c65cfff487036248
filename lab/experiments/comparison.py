"""The table of reported figures beside the figures that were measured here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ensemble_models.options import Table
from lab.reported import Reported

HEADS = ("reported by", "figure", "reported", "here")
# What a document may state with a figure; a sentence tells what most figures of a table have.
STATED = ("model", "hardware")


def beside_reported(figures: Sequence[Reported], here: Mapping[str, str], differs: str) -> str:
    """Write a table of the figures that were measured, and what differs; empty if none was measured."""
    measured = [each for each in figures if each.subject in here]
    if not measured:
        return ""
    usual = {what: found for what in STATED if (found := _usual(measured, what)) is not None}
    lines = [(each.document.name, each.subject, _told(each, usual), here[each.subject]) for each in measured]
    documents = dict.fromkeys(each.document.name for each in measured)
    # One document has no column.
    first = int(len(documents) == 1)
    by = [f"by {name}" for name in documents][:first]
    stated = ", ".join([*by, *(f"{what} {found or 'not stated'}" for what, found in usual.items())])
    is_same = all(getattr(each, what) == found for each in measured for what, found in usual.items())
    every = f"Every reported figure{'' if is_same else ', unless it names another'}: {stated}. " if stated else ""
    lacking = [f"{each.subject}: {_told(each, usual)}" for each in figures if each.subject not in here]
    absent = [f"Reported, but not measured here, or with too few requests: {'; '.join(lacking)}.\n"] if lacking else []
    table = Table(list(HEADS[first:]), [line[first:] for line in lines], words=range(len(HEADS) - first))
    return "\n".join([table.markdown(), f"{every}Differences here: {differs}.\n", *absent])


def _usual(measured: Sequence[Reported], what: str) -> str | None:
    """Find what more than half of the figures have; empty if they state nothing, and None if there is no majority."""
    [(found, count)] = Counter(getattr(each, what) for each in measured).most_common(1)
    return found if 2 * count > len(measured) else None


def _told(each: Reported, usual: Mapping[str, str]) -> str:
    """Write a figure with the model and the hardware that its document states, unless a sentence tells them."""
    own = {what: getattr(each, what) for what in STATED if getattr(each, what) != usual.get(what, "")}
    stated = ", ".join(found or f"{what} not stated" for what, found in own.items())
    return f"{each.text} ({stated})" if stated else each.text
