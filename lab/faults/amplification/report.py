"""What is told of the requests: the worst of them, and how many broke a bar."""

from __future__ import annotations

from collections.abc import Sequence

from lab.faults.amplification.measure import Cost
from scripts.results import Table

HEADINGS = ("index", "to", "what is sent", "key", "bytes", "answered", "wait, s", "CPU, s", "memory, MB", "of the bar")
WORST = 10


def worst(costs: Sequence[Cost]) -> Table:
    """The worst requests, one of each kind: failures first, then what costs most for what it may."""
    ranked = sorted(costs, key=lambda cost: (cost.failure is not None, cost.excess))
    # The last of a kind, which is its worst, is the one that stays.
    kinds = {_kind(cost): cost for cost in ranked}
    chosen = [cost for cost in reversed(ranked) if kinds[_kind(cost)] is cost]
    return Table(HEADINGS, [_cells(cost) for cost in chosen[:WORST]], words=(1, 2, 3, 5))


def _kind(cost: Cost) -> str:
    """What is large, wherever it stands and however it is sent."""
    return cost.what.partition(", ")[0].rpartition(": ")[2].removeprefix("64 times ")


def _cells(cost: Cost) -> list[str]:
    # A bar of Markdown's own would be the end of a cell.
    words = [text.replace("|", "/") for text in (cost.where, cost.what)]
    numbers = [f"{cost.wait_s:.2f}", f"{cost.cpu_s:.2f}", f"{cost.memory / 1e6:,.0f}", f"{cost.excess:.2f}"]
    return [str(cost.index), *words, "yes" if cost.with_key else "no", f"{cost.size:,}", cost.status, *numbers]


def told(costs: Sequence[Cost], seed: int, kinds: int, endpoints: int) -> str:
    """How many requests were sent and where to, and what went wrong with those that failed, a line each."""
    found = [cost for cost in costs if cost.is_finding]
    shown, hidden = ({cost.where for cost in costs if cost.with_key is key} for key in (True, False))
    lines = [
        f"Seed {seed}: {len(costs):,} requests of {kinds:,} kinds; {len(found):,} broke a bar or failed.",
        f"Of {endpoints} routes and methods {len(shown)} were sent requests with a key, {len(hidden)} without.",
    ]
    lines += [f"{cost.index}: {cost.where}, {cost.what}: {cost.failure}" for cost in found if cost.failure is not None]
    return "\n".join(lines)
