"""The names of classes in every form that is usual: lists, maps, tables and lines of text."""

import ast
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deployments.repository.errors import ModelError, reason
from deployments.repository.labels import class_names, without_indices

# A longer file is none of names, nor any other one beside a model that is read.
MOST_BYTES, MOST_VALUES = 16 << 20, 1_000_000
MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
BACKGROUND = re.compile(r"_*(background|dummy|other)( class)?_*", re.IGNORECASE)
# The keys of a mapping that holds the names, besides other fields.
HOLDERS = ("names", "labels", "classes", "class_names", "categories", "id2label", "label_names", "class_to_idx")
# What readers of JSON, YAML, tables and Python's constants raise.
UNREADABLE = (
    *(ValueError, TypeError, SyntaxError, RecursionError, MemoryError, AttributeError, LookupError, OverflowError),
    *(csv.Error, yaml.YAMLError),
)
# A line with an index behind the name.
COUNTED = re.compile(r"(?P<name>\S.*?)\s*[:,;\t ]\s*(?P<index>\d+)\s*")
NAME_COLUMNS = re.compile(r"(class|label|category)?[_ ]?(name|label|class|category|description)s?", re.IGNORECASE)


def read_names(file: Path) -> tuple[str, ...]:
    """Read the class names in a file, in order of index; see `names_in`.

    Raises:
        OSError: the file can't be read.
        ModelError: it holds no names, or names in no usual form.
    """
    return names_in(read_bytes(file), file)


def read_text(file: Path) -> str:
    """Read a text; raises ModelError if it is too large, or no Unicode."""
    return text_of(read_bytes(file), file)


def names_in(content: bytes, file: Path) -> tuple[str, ...]:
    """Read class names in the content of a file: lines, a table, JSON, YAML, or what Python prints."""
    text = text_of(content, file)
    try:
        names = list(_parsed(text, file.suffix.lower()))
    except UNREADABLE as err:
        raise ModelError(f"{file} has no class names in a usual form, as a name on each line: {reason(err)}") from err
    return class_names(names, file)


def read_bytes(file: Path) -> bytes:
    """Read a file of bounded size; raises ModelError for a larger one."""
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ModelError(f"{file} has more than {MOST_BYTES >> 20} MB, so it does not describe a model")
    return content


def text_of(content: bytes, file: Path) -> str:
    """Decode a text by the mark that it begins with, else as UTF-8; raises ModelError if it is no Unicode."""
    encoding = next((name for mark, name in MARKS if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as err:
        raise ModelError(f"{file} is not UTF-8; save it so: {err}") from err


def documents(file: Path) -> list[Any]:
    """Read the documents of a YAML file, or the one of a JSON file; raises ModelError if it is damaged."""
    text = read_text(file)
    try:
        return [json.loads(text)] if file.suffix == ".json" else list(bounded(yaml.safe_load_all(text)))
    except UNREADABLE as err:
        raise ModelError(f"{file} is damaged: {reason(err)}") from err


def bounded(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield documents of YAML; raise ValueError for one whose aliases make more of it than a text of its size is."""
    for document in documents:
        left, count = [document], 0
        while left:
            each, count = left.pop(), count + 1
            if count > MOST_VALUES:
                raise ValueError(f"it has more than {MOST_VALUES} values, by aliases")
            left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        yield document


def names_of(written: Any) -> tuple[str, ...]:
    """Read names of a list, of a map by index or to index, or of a text that Python or JSON reads as one of these.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(written, str):
        # No expression is evaluated: `literal_eval` builds constants only.
        written = ast.literal_eval(written)
    if isinstance(written, Mapping):
        if holder := next((key for key in HOLDERS if isinstance(written.get(key), Mapping | Sequence)), None):
            return names_of(written[holder])
        if _leads_to_indices(written):
            written = {index: name for name, index in written.items()}
        if not (written := _in_order([(int(index), name) for index, name in written.items()])):
            raise ValueError("the indices of its classes don't count from 0")
    # Keras' map of ImageNet has the id of the class before its name.
    names = [each[-1] if isinstance(each, list | tuple) else each for each in written]
    return tuple(_name(each) for each in names)


def _leads_to_indices(written: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is from names to indices, which YAML has as texts; names may be digits, too."""
    values, is_by_index = list(written.values()), all(str(key).isdecimal() for key in written)
    as_text = not is_by_index and all(isinstance(value, str) and value.isdecimal() for value in values)
    return bool(values) and (as_text or all(isinstance(value, int) for value in values))


def fitting(names: Sequence[str], classes: int) -> tuple[str, ...]:
    """Drop the name of a background class that a model does not have, or add one that it has besides."""
    if len(names) == classes + 1 and BACKGROUND.fullmatch(names[0]):
        return tuple(names[1:])
    if len(names) == classes - 1 == 1000:
        return ("background", *names)
    return tuple(names)


def _parsed(text: str, suffix: str) -> Iterable[str]:
    stripped = text.strip()
    if suffix == ".json":
        return names_of(json.loads(stripped))
    if suffix in {".yaml", ".yml"}:
        # Texts as they stand: YAML's own types make a number of `010`, and a truth of `no`.
        # BaseLoader makes texts, lists and mappings only.
        return names_of(next(bounded([yaml.load(text, yaml.BaseLoader)])))  # noqa: S506
    if stripped.startswith(("{", "[")):
        return names_of(stripped)
    if suffix in {".csv", ".tsv"}:
        return _table(text)
    lines = text.rstrip().replace("\r\n", "\n").split("\n") if stripped else []
    if (names := without_indices(lines)) != lines:
        return names
    counted = [found for line in lines if (found := COUNTED.fullmatch(line))]
    names = _in_order([(int(each["index"]), each["name"]) for each in counted])
    return names if lines and len(names) == len(lines) and _differ(names) else lines


def _table(text: str) -> list[str]:
    """Read a table: by its columns of indices and names, if a heading or numbers tell them."""
    lines = text.splitlines() or [""]
    rows = [row for row in csv.reader(lines, delimiter=max(",;\t", key=lines[0].count)) if "".join(row).strip()]
    columns = range(min(map(len, rows), default=0))
    named = [column for column in columns if NAME_COLUMNS.fullmatch(rows[0][column].strip())]
    has_heading = named or any(not _is_number(rows[0][each]) and _is_number(rows[-1][each]) for each in columns)
    body = rows[1:] if has_heading else rows
    indexed = [each for each in columns if all(_is_number(row[each]) for row in body)]
    name = next((each for each in [*named[::-1], *columns[::-1]] if each not in indexed), columns[-1])
    for index in indexed:
        names = _in_order([(int(row[index]), row[name]) for row in body])
        if index != name and _differ(names):
            return names
    return [row[name] for row in body]


def _differ(names: Sequence[str]) -> bool:
    """Check that names tell most classes apart, unlike `type` of `type 0` and `type 1`; ImageNet has two cranes."""
    return 2 * len(set(names)) > len(names)


def _is_number(cell: str) -> bool:
    return cell.strip().isdecimal()


def _in_order(pairs: Sequence[tuple[int, Any]]) -> list[Any]:
    """Sort names by indices, which count from 0 or from 1, each once; empty if they don't."""
    ordered = sorted(pairs, key=lambda pair: pair[0])
    first = ordered[0][0] if ordered else 0
    if first not in {0, 1} or [index for index, _ in ordered] != list(range(first, first + len(ordered))):
        return []
    return [name for _, name in ordered]


def _name(written: Any) -> str:
    if isinstance(written, Mapping):
        written = written.get("name", written.get("label"))
    if isinstance(written, bool) or not isinstance(written, str | int):
        raise ValueError(f"{str(written)[:40]!r} is no name")
    return str(written)
