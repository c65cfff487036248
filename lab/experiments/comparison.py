"""Figures of documents, beside the figures measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ensemble_models.results import Table
from lab.reported import Reported

HEADS = ("reported by", "figure", "model", "hardware", "reported", "here")
# Columns that become a sentence where all figures have the same.
OFTEN_ALIKE = ("model", "hardware")


@dataclass(frozen=True)
class Here:
    """A figure that was measured here, beside a reported one: None for a finding in words; `text` is for people."""

    value: float | None
    text: str


def text(figures: Sequence[Reported], here: Mapping[str, Here], differs: str) -> str:
    """Write a table of the figures that were measured, and what differs; empty if none was measured."""
    rows = [(*_described(each), here[each.subject].text) for each in figures if each.subject in here]
    if not rows:
        return ""
    columns = dict(zip(HEADS, zip(*rows, strict=True), strict=True))
    alike = {head: columns.pop(head)[0] for head in OFTEN_ALIKE if len(set(columns[head])) == 1}
    table = Table(list(columns), list(zip(*columns.values(), strict=True)), words=range(len(columns)))
    every = f"Every reported figure: {', '.join(f'{head} {what}' for head, what in alike.items())}. " if alike else ""
    lacking = [f"- {each.subject}: {each.text}" for each in figures if each.subject not in here]
    absent = ["Reported, and not measured here:\n", *lacking, ""] if lacking else []
    return "\n".join([table.markdown(), f"{every}Differences here: {differs}.\n", *absent])


def _described(each: Reported) -> tuple[str, ...]:
    where, model, hardware = f"{each.document.name}, {each.place}", each.model or "not stated", each.hardware
    return where, each.subject, model, hardware or "not stated", each.text
