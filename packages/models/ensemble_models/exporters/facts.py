"""The facts that exporters state about a model, in the terms of `ensemble prepare`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deployments.repository.errors import ModelError

WHITE = 255
CHANNELS = 3
# Two statements about one fact: names whose spaces an exporter replaced are the same, and so are rounded numbers.
SPACE, ROUNDED = "_", 4


class Fact(NamedTuple):
    """A statement of an exporter.

    Attributes:
        name: the fact's name: `labels`, `head`, `layout`, `size`, `resize`, `crop_ratio`, `interpolation`, `border`,
            `order`, `mean` or `std`; the last two hold for pixels scaled to 0 to 1, in the order of the model.
        value: the fact; None if the exporter does something that the server can't, or leaves it open.
        where: the file and the field in it; for a None, a sentence.
    """

    name: str
    value: Any
    where: str


@dataclass(frozen=True)
class Stated:
    """The facts about a model by name, and the place that states each.

    Attributes:
        values: the facts, in the terms of `Fact`.
        where: the place of each fact.
        open: by the fact's name, a sentence on why it is not known, though an exporter says something about it.
    """

    values: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Iterator[Fact]) -> Stated:
        """Collect facts: the first statement about a fact holds, and a later one that contradicts it opens it."""
        stated = cls()
        for name, value, where in facts:
            if value is None:
                stated.open.setdefault(name, where)
            elif name not in stated.values:
                stated.values[name], stated.where[name] = value, where
            elif _plain(value) != _plain(stated.values[name]):
                stated.open[name] = f"{stated.where[name]} and {where} contradict each other about {name}"
        return stated


@dataclass(frozen=True)
class Description:
    """A tree of fields that an exporter wrote, from a file or from a part of a model."""

    where: str
    fields: Mapping[str, Any]

    def get(self, path: str, default: Any = None) -> Any:
        """Return the field at a dotted path; the default if it is absent or null."""
        found: Any = self.fields
        for key in path.split("."):
            if not isinstance(found, Mapping) or found.get(key) is None:
                return default
            found = found[key]
        return found

    def facts(self, table: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> Iterator[Fact]:
        """Read facts by a table: for each fact's name the path of its field, and the function that converts it.

        Raises:
            ModelError: a field has a value that the exporter does not write.
        """
        for name, (path, convert) in table.items():
            if (written := self.get(path)) is None:
                continue
            try:
                value = convert(written)
            except (TypeError, ValueError, KeyError, SyntaxError, OverflowError) as err:
                raise ModelError(f"{self.where}: {path} is {str(written)[:80]!r}, which is not understood") from err
            yield Fact(name, value, f"{self.where}: {path}")


def numbers(written: Any) -> tuple[float, float, float]:
    """Read three numbers, of a list, of a text, or one for all channels; raises ValueError."""
    values = written.replace(",", " ").strip("[]() ").split() if isinstance(written, str) else written
    row = tuple(float(value) for value in (values if isinstance(values, Sequence) else [values]))
    first, second, third = row * CHANNELS if len(row) == 1 else row
    return first, second, third


def share(written: Any) -> float:
    """Read a share of more than 0 and at most 1; raises ValueError."""
    if not 0 < float(written) <= 1:
        raise ValueError(written)
    return float(written)


def sides(written: Any) -> tuple[int, int]:
    """Read height and width, of a number, a list (channels may come first) or a mapping; raises ValueError."""
    if isinstance(written, Mapping):
        written = [written["height"], written["width"]]
    if isinstance(written, str):
        written = written.replace(",", " ").strip("[]() ").split()
    height, width = [int(side) for side in written][-2:] if isinstance(written, Sequence) else (int(written),) * 2
    if min(height, width) < 1:
        raise ValueError(written)
    return height, width


# By Pillow's number and by every library's name; filters that the server lacks become the nearest one that it has.
FILTERS = {
    **dict.fromkeys(("0", "nearest", "nearest-exact"), "nearest"),
    **dict.fromkeys(("2", "bilinear", "5", "hamming"), "bilinear"),
    **dict.fromkeys(("3", "bicubic"), "bicubic"),
    **dict.fromkeys(("1", "lanczos"), "lanczos"),
    **dict.fromkeys(("4", "box", "area"), "area"),
    # OpenCV's, without antialiasing.
    "linear": "linear",
    "cubic": "cubic",
}


def interpolation(written: Any) -> str:
    """Read a filter's name or number; raises KeyError."""
    return FILTERS[str(written).rpartition(".")[2].lower()]


def framing(resized: int | tuple[int, int] | None, cropped: tuple[int, int] | None, where: str) -> Iterator[Fact]:
    """State size and resizing by the size to which an image is resized, and by the crop of its middle after that.

    Args:
        resized: the shorter side, or height and width; None for no resizing.
        cropped: height and width; None for no crop.
        where: the place that states it.
    """
    if isinstance(resized, tuple) and cropped in {None, resized}:
        yield from (Fact("size", resized, where), Fact("resize", "stretch", where))
    elif isinstance(resized, int) and cropped is not None and cropped[0] == cropped[1] <= resized:
        yield from (Fact("size", cropped, where), Fact("resize", "crop", where))
        yield Fact("crop_ratio", cropped[0] / resized, where)
    else:
        does = f"resizes to {resized} and crops {cropped}, which the server can't"
        if cropped is not None:
            yield Fact("size", cropped, where)
        elif resized is None:
            does = "does not name height and width to resize to"
        yield Fact("resize", None, f"{where} {does}")


def scaling(
    factor: float, mean: Sequence[float], std: Sequence[float], where: str, offset: float = 0.0
) -> Iterator[Fact]:
    """State mean and std of a model that takes (pixel * factor - offset - mean) / std, pixels from 0 to 255."""
    white = WHITE * factor
    if not min(value / white for value in std) > 0:
        raise ModelError(f"{where}: a standard deviation is not above 0")
    yield Fact("mean", tuple(round((value + offset) / white, 9) for value in mean), where)
    yield Fact("std", tuple(round(value / white, 9) for value in std), where)


def _plain(value: Any) -> Any:
    """Reduce a fact to what two exporters write alike."""
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    if isinstance(value, str):
        return value.replace(SPACE, " ").strip()
    return round(value, ROUNDED) if isinstance(value, float) else value
