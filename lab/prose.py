"""Finds sentences that a stranger can't read at once: of the pages, the generated reference and the docstrings.

A sentence has at most 35 words, and a noun for each thing: `UNCLEAR` has the words to avoid. The reference holds each
`--help` text and each field's text, so these are read there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

MOST_WORDS = 35
# Beginnings of longer sentences that may stay: lists of figures.
LISTS = ("at 15/s a p50 of ",)
UNCLEAR = re.compile(
    r"\b(?:that of|those of|those that|the one that|what (?:[\w']+ ){0,4}?(?:is|are|was|were|has|have|had))\b",
    re.IGNORECASE,
)
END = re.compile(r"(?<=[.;?!])[*\"')]*\s+")
CODE = re.compile(r"``?.+?``?", re.DOTALL)
LINK = re.compile(r"\]\([^)]*\)|<[^>]*>")
# What divides a text of a terminal or a docstring: an empty line, a section's head, an entry of a list or a section.
DIVIDER = re.compile(
    r"\n\s*\n|\n\s*(?:Args|Attributes|Raises|Returns|Yields):(?=\n)|\n(?=\s*(?:[-*] |ensemble |[`*\w.]+: ))"
)
USAGE = re.compile(r"usage:.*?\n\n", re.DOTALL)
OPTION = re.compile(r"\n(?= {1,8}\S)|(?<=\S) {2,}")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; code counts as a word, and an address as none."""
    for block in DIVIDER.split(text):
        yield from END.split(" ".join(LINK.sub("]", CODE.sub("code", block)).split()))


def paragraphs(page: str, is_reference: bool) -> Iterator[str]:
    """Yield the paragraphs, headings and cells of a page, and of the reference also the texts for a terminal."""
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type == "inline":
            yield token.content
        elif token.type == "fence" and is_reference and token.info == "text":
            yield from OPTION.split(USAGE.sub("", token.content, count=1))


def docstrings(code: str) -> Iterator[str]:
    """Yield the docstrings of a module, of its classes and functions, and the messages of its errors."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Raise):
            yield "".join(
                each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def faults(file: Path) -> list[str]:
    """Return the sentences of a page or a module that break the rule, each with the reason."""
    text = file.read_text(encoding="utf-8")
    texts = docstrings(text) if file.suffix == ".py" else paragraphs(text, file.parent.name == "reference")
    found = []
    for sentence in (sentence for each in texts for sentence in sentences(each)):
        if (words := len(sentence.split())) > MOST_WORDS and not sentence.startswith(LISTS):
            found.append(f"{words} words: {sentence}")
        if unclear := UNCLEAR.search(sentence):
            found.append(f'"{unclear[0]}": {sentence}')
    return found
