"""The header `Server-Timing`, which a browser's developer tools draw. Source: https://www.w3.org/TR/server-timing/."""

from __future__ import annotations

from deployments.contract.timing import QUEUE, Timeline

NAME = b"server-timing"


def server_timing(total_s: float, timeline: Timeline | None) -> str:
    """Write the header: the whole call, then each stage of its image; of several images, the one that returned last."""
    metrics = [f"total;dur={total_s * 1000:.3f}"]
    if timeline is not None:
        metrics.append(_metric(QUEUE, timeline.queued_ns, timeline.left_ns))
        metrics += [_metric(step.note.node, step.note.start_ns, step.note.end_ns) for step in timeline.steps]
    return ", ".join(metrics)


def _metric(stage: str, start_ns: int, end_ns: int) -> str:
    # A name is a token, which has no space.
    return "%s;dur=%.3f" % (stage.replace(" ", "-"), (end_ns - start_ns) / 1e6)  # noqa: UP031 (the faster one)
