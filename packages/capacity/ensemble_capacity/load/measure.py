"""Measures a load."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ensemble_capacity.load.duration import Duration, agree, is_beyond, window
from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Mode, Target
from ensemble_capacity.load.row import Row, row
from ensemble_capacity.load.server import Figures, Moment, Server, stages_ms

# What happened until the end of a window is reported so much later, seconds.
SETTLE_S = 0.3


def measure(
    target: Target,
    mode: Mode,
    duration: Duration,
    *,
    processes: int = 1,
    server: Server | None = None,
    tick: Callable[[Generator], object] = lambda _: None,
) -> Row:
    """Load a server by so many processes, and watch it meanwhile; `tick` is called about ten times per second.

    Raises:
        ScriptError: the load generator did not start.
    """
    moments: deque[Moment] = deque(maxlen=duration.agreeing + 1)

    def look() -> None:
        if server is not None:
            moments.append(server.moment())

    with Generator(target, mode, processes) as generator:
        generator.run(duration.warm_up_s, lambda: tick(generator))
        look()
        begin = generator.began + duration.warm_up_s
        if duration.seconds is not None:
            generator.run(duration.longest_s, lambda: tick(generator))
            look()
            end, stable = min(begin + duration.seconds, time.perf_counter()), None
        else:
            begin, end, stable = _windows(generator, duration, look, lambda: tick(generator))
    return row(
        generator.records(),
        begin,
        end,
        target,
        mode,
        percentile=duration.percentile,
        cpu_s=generator.cpu_s(begin, end),
        processes=processes,
        stable=stable,
        first_error=generator.first_error,
        server=Figures() if server is None else server.between(moments[0], moments[-1]),
        stages_ms=stages_ms(generator.timings),
    )


def _windows(
    generator: Generator, duration: Duration, look: Callable[[], None], tick: Callable[[], object]
) -> tuple[float, float, bool]:
    """Begin and end of the last windows, and whether they agree."""
    first = generator.began + duration.warm_up_s
    seen: list[tuple[float, float]] = []
    stable = False
    while not stable and not is_beyond(seen, duration) and len(seen) < duration.trials and not generator.ended:
        begin = first + len(seen) * duration.window_s
        end_s = duration.warm_up_s + (len(seen) + 1) * duration.window_s
        generator.run(end_s, tick)
        look()
        generator.run(end_s + SETTLE_S, tick)
        seen.append(window(generator.records(), begin, begin + duration.window_s, duration.percentile))
        stable = agree(seen, duration)
    end = first + len(seen) * duration.window_s
    return max(first, end - duration.agreeing * duration.window_s), end, stable
