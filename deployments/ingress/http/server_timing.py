"""The header `Server-Timing`, which a browser's developer tools draw. Source: https://www.w3.org/TR/server-timing/."""

from __future__ import annotations

from deployments.contract.timing import QUEUE, Way

NAME = "Server-Timing"


def server_timing(total_s: float, way: Way | None) -> str:
    """The header's value: the whole call, then each stage of its image; of several, of the one that came back last."""
    told = [f"total;dur={total_s * 1000:.3f}"]
    if way is not None:
        told.append(_told(QUEUE, way.queued_ns, way.left_ns))
        told += [_told(step.note.node, step.note.start_ns, step.note.end_ns) for step in way.steps]
    return ", ".join(told)


def _told(stage: str, start_ns: int, end_ns: int) -> str:
    # A name is a token, which has no space.
    return "%s;dur=%.3f" % (stage.replace(" ", "-"), (end_ns - start_ns) / 1e6)  # noqa: UP031 (the faster one)
