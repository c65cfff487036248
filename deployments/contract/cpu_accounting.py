"""A process' CPU meter, shared out over the spans of work that are under way in it.

Threads serve several spans at a time, so no thread's clock is a span's. The meter therefore looks at the clock of the
whole process whenever a span begins, ends, or changes what computes for it. The process' CPU time since the last
look is shared out:

- the event loop's thread works for one span, which gets the thread's time;
- the spans that compute share the time of all other threads, by the number of threads of each span;
- the rest belongs to no span: reading and writing messages, and the work of Ray's threads.

So the spans and the rest sum to the process' own meter. It is read only while a span is metered, and for `PAUSE_S`
afterwards: what a process uses in longer pauses belongs to no span.
"""

from __future__ import annotations

import time
from weakref import ref

PAUSE_S = 0.1


class Meter:
    """Shares out a process' CPU time; for the thread of the event loop alone.

    Attributes:
        is_on: whether the clocks are read.
        unmetered: the threads that compute for work which began while the meter was off; nothing has what they use.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.unmetered = 0
        self._rest_ns = 0.0
        # The span that the event loop works for, and those that other threads compute for.
        self._at_loop: ref[CpuMeasurement] | None = None
        self._elsewhere: set[CpuMeasurement] = set()
        self._metered, self._owners, self._until = 0, 0, 0.0
        self._process_ns = self._loop_ns = 0

    def begin(self, metered: bool, owner: bool = False) -> CpuMeasurement | None:
        """Begin a span, which the event loop works for from now on; None where nothing is metered.

        Until the span of an owner ends, the rest is what `take_rest` returns. Otherwise each span that ends takes it.
        """
        self.look()
        if metered:
            self._metered += 1
            if not self.is_on:
                self.is_on, self._rest_ns = True, 0.0
                self._process_ns, self._loop_ns = time.process_time_ns(), time.thread_time_ns()
        elif not self.is_on:
            return None
        span = CpuMeasurement(self, metered, owner)
        self._owners += owner
        self._at_loop = None if owner else ref(span)
        return span

    def leave(self, span: CpuMeasurement, threads: int) -> None:
        """Note that the event loop leaves a span, for which `threads` more threads compute; 0 if it only waits."""
        self.look()
        span.threads += threads
        if span.threads:
            self._elsewhere.add(span)
        self._leave_loop(span)

    def come_back(self, span: CpuMeasurement, threads: int) -> None:
        """Subtract finished threads from a span; after the last one, the event loop works for the span again."""
        self.look()
        span.threads -= threads
        if not span.threads:
            self._elsewhere.discard(span)
            self._at_loop = ref(span)

    def end(self, span: CpuMeasurement) -> None:
        """End a span."""
        self.look()
        self._elsewhere.discard(span)
        self._leave_loop(span)
        if not self._owners:
            span.cpu_ns += self._taken()
        self._forget(span)

    def drop(self, span: CpuMeasurement) -> None:
        """Add the CPU time of a span that came to nothing to the rest; from any thread."""
        self._rest_ns += span.cpu_ns
        self._forget(span)

    def _forget(self, span: CpuMeasurement) -> None:
        self._owners -= span.owner
        if span.metered:
            self._metered -= 1
            self._until = time.monotonic() + PAUSE_S

    def take_rest(self) -> float:
        """Take the CPU time since the last call that belongs to no span, nanoseconds."""
        self.look()
        return self._taken()

    def _leave_loop(self, span: CpuMeasurement) -> None:
        if self._at_loop is not None and self._at_loop() is span:
            self._at_loop = None

    def _taken(self) -> float:
        taken, self._rest_ns = self._rest_ns, 0.0
        return taken

    def look(self) -> None:
        """Share out the process' CPU time since the last look."""
        if not self.is_on:
            return
        if not self._metered and time.monotonic() > self._until:
            self.is_on = False
            return
        process_ns, loop_ns = time.process_time_ns(), time.thread_time_ns()
        used, loop = process_ns - self._process_ns, loop_ns - self._loop_ns
        self._process_ns, self._loop_ns = process_ns, loop_ns
        at_loop = None if self._at_loop is None else self._at_loop()
        if at_loop is None:
            self._rest_ns += loop
        else:
            at_loop.cpu_ns += loop
        threads = self.unmetered + sum(span.threads for span in self._elsewhere)
        if threads:
            for span in self._elsewhere:
                span.cpu_ns += (used - loop) * span.threads / threads
        else:
            self._rest_ns += used - loop


class CpuMeasurement:
    """A span of work.

    Attributes:
        metered: whether somebody wants to know what it takes.
        owner: whether CPU time of no span is its owner's.
        cpu_ns: its CPU time so far, nanoseconds.
        threads: how many threads compute for it besides the event loop's.
    """

    __slots__ = ("__weakref__", "_meter", "cpu_ns", "metered", "owner", "threads")

    def __init__(self, meter: Meter, metered: bool, owner: bool) -> None:
        self._meter: Meter | None = meter
        self.metered, self.owner, self.cpu_ns, self.threads = metered, owner, 0.0, 0

    def end(self) -> float:
        """End the span, and return its CPU time, nanoseconds."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.end(self)
        return self.cpu_ns

    def __del__(self) -> None:
        """Add the CPU time of a span that was not ended to the rest."""
        if self._meter is not None:
            self._meter.drop(self)


METER = Meter()
