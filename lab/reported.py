"""The figures of the five documents that this project answers, and the experiment that measures each here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# Documents by name, and groups of figures, of which one alone is a group itself.
_LISTED: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
        name: on the pages.
        file: of its text, in the folder that ENSEMBLE_DOCUMENTS names.
        title: of the document.
        authors: by name; a company where no person is named.
        date: as the text has it; empty for a text without a date.
    """

    name: str
    file: str
    title: str
    authors: tuple[str, ...]
    date: str = ""


@dataclass(frozen=True)
class Reported:
    """A figure.

    Attributes:
        document: that reports it.
        place: its table, figure or section there.
        subject: the measured quantity; unique within an experiment.
        at: its sentence, as `7.2`: the second sentence of the seventh paragraph below the line that begins with the
            place; lines of a table or a list count as paragraphs, and the place's own line is paragraph 0.
        says: what the sentence says of the subject, with its conditions, in this project's own words.
        value: the figure; None for a finding in words, which `unit` has.
        unit: of the value.
        near: a term of the text that stands within a few words of the figure; the model if it is empty.
        written: the figure as the text writes it, if not in digits as here.
        model: that was measured; empty if the text names none.
        hardware: that it was measured on; empty if the text names none.
        clients: that sent requests at a time; None if the text does not say.
        experiment: the page of docs/experiments that measures or computes it here; None if none does.
        why_not: why not; None if one does.
    """

    document: Document
    place: str
    subject: str
    unit: str
    at: str
    says: str
    value: float | None = None
    near: str = ""
    written: str = ""
    model: str = ""
    hardware: str = ""
    clients: int | None = None
    experiment: str | None = None
    why_not: str | None = None

    @property
    def text(self) -> str:
        """The figure for people."""
        return self.unit if self.value is None else f"{self.value:,.15g} {self.unit}"


def _figures() -> Iterator[Reported]:
    for group in _LISTED["figures"]:
        shared = {name: value for name, value in group.items() if name not in {"document", "figures"}}
        for figure in group.get("figures", [{}]):
            yield Reported(document=DOCUMENTS[group["document"]], **shared, **figure)


DOCUMENTS = {
    name: Document(name, **{**fields, "authors": tuple(fields["authors"])})
    for name, fields in _LISTED["documents"].items()
}
REPORTED = tuple(_figures())


def of(experiment: str) -> list[Reported]:
    """List the figures that an experiment measures."""
    return [each for each in REPORTED if each.experiment == experiment]
