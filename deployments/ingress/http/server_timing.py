"""The header `Server-Timing`, which a browser's developer tools draw. Source: https://www.w3.org/TR/server-timing/."""

from __future__ import annotations

from deployments.contract.timing import Way

NAME = "Server-Timing"


def server_timing(total_s: float, way: Way | None) -> str:
    """The header's value: the whole call, then each stage of its image; of several, of the one that came back last."""
    told = [f"total;dur={total_s * 1000:.3f}"]
    if way is not None:
        told.append(f"queue;dur={(way.left_ns - way.queued_ns) / 1e6:.3f}")
        # A name is a token, which has no space.
        told += [
            f"{step.note.node.replace(' ', '-')};dur={(step.note.end_ns - step.note.start_ns) / 1e6:.3f}"
            for step in way.steps
        ]
    return ", ".join(told)
