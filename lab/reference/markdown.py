"""Tables and links of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ensemble_models.results import Table


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; its cells may hold any text of a line."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return Table(head, escaped, words=range(len(head))).markdown()


def prose(text: str) -> str:
    """Escape `<` in text, besides where the text is code."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def code(text: object) -> str:
    """Format text as code; nothing for no text."""
    return f"`{text}`" if str(text) else ""


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring, in a line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())
