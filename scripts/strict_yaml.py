"""Reads a YAML file in which every scalar means the same to all readers of YAML, and finds the lines of its fields.

`serve run` and KubeRay read YAML 1.1, in which `yes`, `017` and `1:00` are true, 15 and 60; other tools read YAML 1.2.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import yaml

from deployments.contract.errors import ConfigurationError

PREFIX = "tag:yaml.org,2002:"
TEXT, MERGE = f"{PREFIX}str", f"{PREFIX}merge"
ALLOWED = {TEXT, MERGE, *(f"{PREFIX}{name}" for name in ("map", "seq", "null", "bool", "int", "float"))}
# A scalar that is no text for PyYAML is the same for YAML 1.2 if it is written so.
SAME = re.compile(
    r"|~|null|Null|NULL|true|True|TRUE|false|False|FALSE"
    r"|[-+]?(0|[1-9][0-9]*)|[-+]?[0-9]*\.[0-9]*([eE][-+][0-9]+)?"
)
# A plain scalar that is a text for PyYAML is a number or a boolean for others if it is written so.
NO_TEXT = re.compile(r"[yYnN]|0o[0-7]+|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Words of a message: the names of fields, and the positions or names of a list's entries.
WORD = re.compile(r"[^\s:.,;'\"]+")


class Document:
    """A YAML document.

    Attributes:
        value: its content.
    """

    def __init__(self, text: str) -> None:
        """Read a document.

        Raises:
            ConfigurationError: it is no YAML, or readers of YAML differ about a part of it.
        """
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            if problems := list(_problems(self._root, (), ())) if self._root else []:
                raise ConfigurationError(*problems)
            self.value: Any = yaml.SafeLoader("").construct_document(self._root) if self._root else None
        except yaml.YAMLError as err:
            mark, problem = getattr(err, "problem_mark", None), getattr(err, "problem", err)
            place = f"line {mark.line + 1}: " if mark else ""
            raise ConfigurationError(f"{place}it is not valid YAML: {problem}") from err

    @contextmanager
    def locating(self, *places: Sequence[str | int]) -> Iterator[None]:
        """Put the line of its field before each problem of a ConfigurationError.

        A problem begins with the path of its field, below the file's root or below one of the places.
        """
        try:
            yield
        except ConfigurationError as err:
            raise ConfigurationError(*(f"line {self._line(each, ((), *places))}: {each}" for each in err.args)) from err

    def _line(self, problem: str, places: Iterable[Sequence[str | int]]) -> int:
        """Return the line, from 1, of the deepest field that the words of a problem lead to."""
        words = WORD.findall(problem)
        return max(_walk(self._root, [*map(str, place), *words], len(place)) for place in places)[1]


def _walk(node: yaml.Node | None, words: Iterable[str], above: int) -> tuple[int, int]:
    """Follow words to a field; return how many led below the first `above` ones, and the line of the field.

    Words that lead nowhere are skipped.
    """
    steps, line = -above, 1
    for word in words:
        for name, mark, below in _children(node):
            if name == word:
                node, line, steps = below, mark.line + 1, steps + 1
                break
    return steps, line


def _children(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Mark, yaml.Node]]:
    """Yield the fields of a mapping, or the entries of a list by position and by name, with the beginning of each."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, key.start_mark, value
    elif isinstance(node, yaml.SequenceNode):
        for position, entry in enumerate(node.value):
            names = (value.value for name, _, value in _children(entry) if name == "name")
            for each in (str(position), *names):
                yield each, entry.start_mark, entry


def _problems(node: yaml.Node, path: tuple[str, ...], above: tuple[yaml.Node, ...]) -> Iterator[str]:
    """Yield the problems of a node at a path, and of the nodes below it."""
    where = f"line {node.start_mark.line + 1}: {'.'.join(path) or 'the file'}"
    if node in above:
        yield f"{where}: it contains itself; write it out"
    elif isinstance(node, yaml.ScalarNode):
        if _is_doubtful(node):
            yield f"{where}: {_doubt(node)}"
    elif node.tag not in ALLOWED:
        yield f"{where}: a tag; remove it"
    else:
        if isinstance(node, yaml.MappingNode):
            yield from _problems_of_keys(node, path)
            below = [(str(key.value), value) for key, value in node.value]
        else:
            below = [(str(position), entry) for position, entry in enumerate(node.value)]
        for name, each in below:
            yield from _problems(each, (*path, name), (*above, node))


def _is_doubtful(node: yaml.ScalarNode) -> bool:
    """Tell whether readers of YAML may take a scalar for different types."""
    if node.tag == TEXT:
        return node.style is None and NO_TEXT.fullmatch(node.value) is not None
    return node.tag not in ALLOWED or SAME.fullmatch(node.value) is None


def _problems_of_keys(node: yaml.MappingNode, path: tuple[str, ...]) -> Iterator[str]:
    seen = set[str]()
    for key, _ in node.value:
        where = f"line {key.start_mark.line + 1}: {'.'.join((*path, str(key.value)))}"
        if not isinstance(key, yaml.ScalarNode):
            yield f"line {key.start_mark.line + 1}: {'.'.join(path)}: a key is a text, and no list or mapping"
        elif key.tag not in {TEXT, MERGE}:
            yield f"{where}: a key is a text; write '{key.value}'"
        elif key.value in seen:
            yield f"{where}: {key.value!r} stands twice in one mapping; merge both"
        seen.add(str(key.value))


def _doubt(node: yaml.ScalarNode) -> str:
    """Describe a scalar that readers of YAML read differently: its plain form, if it has one, and its quoted form."""
    plain = ""
    with suppress(yaml.YAMLError, TypeError, ValueError):
        value = yaml.SafeLoader("").construct_object(node)
        if node.tag == TEXT:
            number = int(value, 8) if value.startswith("0o") else float(value)
            value = int(number) if number == int(number) else number
        plain = f"{json.dumps(value, allow_nan=False)}, or "
    return f"readers of YAML differ about {node.value}; write {plain}'{node.value}' for the text"
