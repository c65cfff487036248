"""A process' CPU meter, shared out over the pieces of work that are under way in it.

Threads serve several pieces at a time, so no thread's clock is a piece's. The meter therefore looks at the clock of the
whole process whenever a piece begins, ends, or changes what computes for it. What the process has used since the last
look is shared out:

- what the event loop's thread has used belongs to the piece that the loop works for;
- what all other threads have used belongs to the pieces that they compute for, by the number of threads of each;
- what belongs to no piece is the rest: reading and writing messages, and the work of Ray's threads.

So the pieces and the rest sum to the process' own meter. It is read only while a piece is metered, and for `PAUSE_S`
afterwards: what a process uses in longer pauses belongs to no piece.
"""

from __future__ import annotations

import time
from weakref import ref

PAUSE_S = 0.1


class Meter:
    """Shares out a process' CPU time; for the thread of the event loop alone.

    Attributes:
        is_on: whether the clocks are read.
        keeps_rest: whether the rest is taken by `take_rest`; otherwise each piece that ends takes it.
        unmetered: the threads that compute for work which began while the meter was off; nothing has what they use.
    """

    def __init__(self) -> None:
        self.is_on = self.keeps_rest = False
        self.unmetered = 0
        self._rest_ns = 0.0
        # The piece that the event loop works for, and those that other threads compute for.
        self._at_loop: ref[Span] | None = None
        self._elsewhere: set[Span] = set()
        self._metered, self._until = 0, 0.0
        self._process_ns = self._loop_ns = 0

    def begin(self, metered: bool, at_loop: bool = True) -> Span | None:
        """Begin a span, which the event loop works for from now on; None where nothing is metered."""
        self.look()
        if metered:
            self._metered += 1
            if not self.is_on:
                self.is_on, self._rest_ns = True, 0.0
                self._process_ns, self._loop_ns = time.process_time_ns(), time.thread_time_ns()
        elif not self.is_on:
            return None
        piece = Span(self, metered)
        self._at_loop = ref(piece) if at_loop else None
        return piece

    def leave(self, piece: Span, threads: int) -> None:
        """Note that the event loop leaves a span, for which `threads` more threads compute; 0 if it only waits."""
        self.look()
        piece.threads += threads
        if piece.threads:
            self._elsewhere.add(piece)
        self._leave_loop(piece)

    def come_back(self, piece: Span, threads: int) -> None:
        """Subtract finished threads from a piece; after the last one, the event loop works for the piece again."""
        self.look()
        piece.threads -= threads
        if not piece.threads:
            self._elsewhere.discard(piece)
            self._at_loop = ref(piece)

    def end(self, piece: Span) -> None:
        """End a span."""
        self.look()
        self._elsewhere.discard(piece)
        self._leave_loop(piece)
        self._forget(piece)
        if not self.keeps_rest:
            piece.cpu_ns += self._taken()

    def drop(self, piece: Span) -> None:
        """Add the CPU time of a span that came to nothing to the rest; from any thread."""
        self._rest_ns += piece.cpu_ns
        self._forget(piece)

    def _forget(self, piece: Span) -> None:
        if piece.metered:
            self._metered -= 1
            self._until = time.monotonic() + PAUSE_S

    def take_rest(self) -> float:
        """Take the CPU time since the last call that belongs to no span, nanoseconds."""
        self.look()
        return self._taken()

    def _leave_loop(self, piece: Span) -> None:
        if self._at_loop is not None and self._at_loop() is piece:
            self._at_loop = None

    def _taken(self) -> float:
        taken, self._rest_ns = self._rest_ns, 0.0
        return taken

    def look(self) -> None:
        """Share out what the process has used since the last look."""
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
        threads = self.unmetered + sum(piece.threads for piece in self._elsewhere)
        if threads:
            for piece in self._elsewhere:
                piece.cpu_ns += (used - loop) * piece.threads / threads
        else:
            self._rest_ns += used - loop


class Span:
    """A piece of work.

    Attributes:
        metered: whether somebody wants to know what it takes.
        cpu_ns: what it has taken so far, nanoseconds of CPU time.
        threads: how many threads compute for it besides the event loop's.
    """

    __slots__ = ("__weakref__", "_meter", "cpu_ns", "metered", "threads")

    def __init__(self, meter: Meter, metered: bool) -> None:
        self._meter: Meter | None = meter
        self.metered, self.cpu_ns, self.threads = metered, 0.0, 0

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
