"""The critical path of a trace: the time of each node, and of each hop between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deployments.contract.member import OPERATION
from deployments.observe.tracing import BATCH
from scripts.trace.spans import Span

ARROW, ELSEWHERE = " to ", "its server's "
# Spans by their parents' ids.
Below = Mapping[str | None, Sequence[Span]]


def node(span: Span) -> str:
    """The name of a span's node; every member is called `member`."""
    return "member" if span.name.startswith(OPERATION) else span.name


def path(
    span: Span, below: Below, where: str = "", begin: int = 0, end: int | None = None
) -> Iterator[tuple[str, int]]:
    """The parts of a span's time, the last one first, microseconds: of each node and, with both names, of each hop.

    `below` has the spans by their parents' ids, `where` is what names begin with; from `begin` to `end` it counts.
    """
    begin, end = max(begin, span.start_us), span.end_us if end is None else min(end, span.end_us)
    own = where + node(span)
    inner = where if own in {"client", where + "classify"} else ELSEWHERE
    now, later = end, own
    for child in sorted(below.get(span.span_id, ()), key=lambda child: (child.end_us, child.start_us), reverse=True):
        # A server ends its span when it has sent the answer, which its client may have by then.
        last, first = min(child.end_us, end), max(child.start_us, begin)
        if child.name == BATCH or first > last or last > now:
            continue
        parts = list(path(child, below, inner, first, last))
        name = inner + node(child)
        yield name + ARROW + later, now - last
        yield from parts
        now, later = first, name
    yield (own if later == own else own + ARROW + later), now - begin
