"""The names of a model's classes, as files have them and as answers have them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from unicodedata import category, normalize

from deployments.repository.errors import ModelError

# The categories of characters that are no text: controls, halves of characters, and ends of lines and paragraphs.
NO_TEXT = {"Cc", "Cs", "Zl", "Zp"}
# A line of a file of labels that begins with the index of the class, or with a WordNet id.
INDEXED, SYNSET = re.compile(r"\s*(\d+)\s*[:,;\s]\s*(.*\S)\s*"), re.compile(r"\s*n\d{8}[\s,]+(.*\S)\s*")


def read_labels(file: Path) -> tuple[str, ...]:
    """Read the class names in a file, one on each line, in order of index; empty lines at the end are no names.

    Raises:
        OSError: it can't be read.
        ModelError: it is not UTF-8, or see `class_names`.
    """
    try:
        # A byte order mark is no part of a name, and of what ends a line for Unicode only an end of line does.
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as err:
        raise ModelError(f"{file} is not UTF-8; save it so: {err}") from err
    return class_names(without_indices(text.rstrip().split("\n") if text.strip() else ()), file)


def without_indices(lines: Sequence[str]) -> list[str]:
    """Remove what stands before the names on all lines: an index, from 0 or 1, or ImageNet's WordNet id.

    Names are sorted by their indices.
    """
    indexed = sorted((int(match[1]), match[2]) for line in lines if (match := INDEXED.fullmatch(line)))
    names = [name for _, name in indexed]
    counts = list(range(len(lines))), list(range(1, len(lines) + 1))
    # Numbers that tell the names apart are a part of them, as of `1 star` and `2 stars`.
    if [index for index, _ in indexed] in counts and 2 * len(set(names)) > len(names):
        return names
    synsets = [match[1] for line in lines if (match := SYNSET.fullmatch(line))]
    return synsets if len(synsets) == len(lines) else list(lines)


def class_names(given: Iterable[str], where: Path | str) -> tuple[str, ...]:
    """Write the names of classes as answers have them: each on one line, and of one class.

    A line break, or another control character, becomes a space. If several classes have a name, each gets its index.

    Raises:
        ModelError: a class has no name.
    """
    # In the one form of characters with accents: files of macOS have another one.
    lines = ["".join(" " if category(sign) in NO_TEXT else sign for sign in normalize("NFC", name)) for name in given]
    lines = [line.strip() for line in lines]
    if "" in lines:
        raise ModelError(f"{where}: the class with index {lines.index('')} has no name; give it one")
    counts = Counter(lines)
    names = tuple(f"{name} ({index})" if counts[name] > 1 else name for index, name in enumerate(lines))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ModelError(f"{where}: several classes are called {twice[0]!r}; give each a name of its own")
    return names
