"""The pages keep the language rule: short sentences, and nouns in place of references that a reader must resolve."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
MOST_WORDS = 35
END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\d(\"'`])")
UNCLEAR = re.compile(r"\bth(?:at|ose) of\b|\bwhat\b(?:\s+[\w'-]+){0,8}?\s+(?:is|are|was|were)\b", re.IGNORECASE)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the text of each paragraph and list item, without code blocks, tables, headings and targets of links."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for opening, token in itertools.pairwise(tokens):
        if opening.type == "paragraph_open":
            kept = (child for child in token.children or () if child.type != "html_inline")
            yield "".join(_text(child.type, child.content) for child in kept)


def _text(kind: str, content: str) -> str:
    return {"softbreak": " ", "hardbreak": " ", "image": "", "code_inline": "`code`"}.get(kind, content)


def faults(text: str) -> list[str]:
    """List the sentences that are too long or have an unclear reference."""
    sentences = [sentence for paragraph in paragraphs(text) for sentence in END.split(paragraph)]
    return [each for each in sentences if len(each.split()) > MOST_WORDS or UNCLEAR.search(each)]


def pages() -> dict[str, str]:
    """Read the pages outside the reference, and the newest section of the changelog."""
    found = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "experiments").glob("*.md")]
    names = ["README.md", "CONTRIBUTING.md", *(path.relative_to(ROOT).as_posix() for path in sorted(found))]
    changes = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    return {name: (ROOT / name).read_text() for name in names} | {"CHANGELOG.md": changes}


@pytest.mark.parametrize("text", pages().values(), ids=pages())
def test_a_page_has_no_faults(text):
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("word " * 35 + "end.", 1),
        ("word " * 34 + "end. Another sentence.", 0),
        ("word " * 34 + "`two words`", 0),
        ("* One item, as that of\n  another.\n* A second one.", 1),
        ("The table says what the width\nof a *batch* is.", 1),
        ("A reader sees what it does.", 0),
        ("| those of |\n|---|\n| that of |\n\n```\nthose of\n```\n\n# Those of", 0),
        ("See [the page](what-is.md) and `that of`.", 0),
    ],
)
def test_a_fault_is_found_in_prose_alone(text, count):
    assert len(faults(text)) == count
