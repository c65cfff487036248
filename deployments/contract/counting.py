"""Counters, and the tags of metrics; `deployments.observe.metrics` reports them to Prometheus."""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from deployments.contract.names import MOST_VALUES, OTHER

# What Ray takes as it is: printable ASCII, but for the sign that begins a byte of anything else.
PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class Tags:
    """The tags of a metric: any text becomes what Ray takes, and many values become few.

    Ray takes ASCII alone, and has a series for whatever it was told, for as long as the process runs. So a byte that is
    not printable ASCII, or is `%`, is written as in a URL.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # Ray's own annotation allows one name only.
        self.keys: Any = tuple(names)
        self._known: list[dict[str | bool, str]] = [{} for _ in names]

    def written(self, values: Sequence[str | bool]) -> dict[str, str]:
        """Write values by the tags' names, in order: a bool as `true` or `false`, one too many as `other`."""
        known = zip(self.keys, self._known, self.bounded(values), strict=True)
        return {name: texts.get(value, OTHER) for name, texts, value in known}

    def bounded(self, values: Sequence[str | bool]) -> tuple[str | bool, ...]:
        """Replace values beyond the limit by `other`."""
        for known, value in zip(self._known, values, strict=True):
            if value not in known and len(known) < MOST_VALUES:
                text = str(value).lower() if isinstance(value, bool) else value
                known[value] = quote(text, PLAIN, errors="replace")
        return tuple(value if value in known else OTHER for known, value in zip(self._known, values, strict=True))


class TaggedCounter:
    """A counter that its process can read. `CounterReport` reports every counter of the process.

    Attributes:
        counts: by the values of the tags; `other` stands for values beyond the first `MOST_VALUES` of a tag.
    """

    def __init__(self, name: str, description: str, *tags: str) -> None:
        self.name, self.description, self.tags = name, description, Tags(tags)
        self.counts: Tally[tuple[str | bool, ...]] = Tally()
        self._reported: Tally[tuple[str | bool, ...]] = Tally()
        COUNTERS.append(self)

    def add(self, *values: str | bool, count: int = 1) -> None:
        """Count `count` more with these values of the tags, in order; a bool is `true` or `false` for Prometheus."""
        if values in self.counts:
            self.counts[values] += count
        elif count:
            self.counts[self.tags.bounded(values)] += count

    def unreported(self) -> list[tuple[dict[str, str], int]]:
        """Return the counts since the last call, by the tags; from any thread."""
        counts = self.counts.copy()
        new, self._reported = counts - self._reported, counts
        return [(self.tags.written(values), count) for values, count in new.items()]


# Those of this process.
COUNTERS: list[TaggedCounter] = []
