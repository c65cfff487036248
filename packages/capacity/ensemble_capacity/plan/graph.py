"""The nodes of an application in virtual time: what a batch computes, where, and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

from deployments.contract.names import INGRESS, TRANSFORMER
from deployments.members.predictor import MOST_AT_ONCE
from ensemble_capacity.plan.clock import Machine, Pool, Then
from ensemble_capacity.plan.profile import SHARES, Curve, Overhead, Profile
from ensemble_capacity.plan.setting import Setting

# Calls in a row where every node is separate: to the transformer, the members, the combiner and the labeler.
HOPS = 4
MEDIAN = SHARES.index(0.5)


class Node:
    """A replica of a node: its batches are split over the streams that compute."""

    def __init__(self, machine: Machine, curve: Curve | None, threads: int, side_by_side: bool) -> None:
        """Set how fast it is; a node without a curve takes no time, and others have threads of their own kind."""
        self._curve, self._together = curve, side_by_side
        if curve is not None:
            # With more threads than were measured it has as many more streams, each as fast as the measured ones.
            self._wider = max(1, threads // curve.threads)
            self.pool = Pool(machine, curve.streams * self._wider)

    def run(self, images: int, then: Then) -> None:
        """Call `then` when a batch is computed."""
        if self._curve is None:
            then()
            return
        wider = min(self._wider, images)
        cpu, wall, factor = self._curve.at(-(-images // wider))
        streams = self._curve.streams * wider
        parts = min(images, max(streams, -(-images // MOST_AT_ONCE)))
        threads = max(0.05, min(self._curve.threads / self._curve.streams, cpu * wider / (min(parts, streams) * wall)))
        work = cpu * wider * (factor if self._together else 1.0) / parts
        arrive = joined(parts, then)
        for _ in range(parts):
            self.pool.do(work, arrive, threads)


class Remote:
    """A separate node: its replicas in turn, each with an event loop of its own."""

    def __init__(self, machine: Machine, nodes: list[Node], overhead: Overhead, hop_s: float) -> None:
        """Set its replicas, what a call costs in their processes, and for how long it waits on its way there."""
        self._machine, self._hop_s = machine, hop_s
        self._each = cycle([(Pool(machine), node) for node in nodes])
        self._overhead = overhead

    def run(self, images: int, then: Then) -> None:
        """See `Node.run`."""
        loop, node = next(self._each)
        call = (self._overhead.batch_ms + self._overhead.image_ms * images) / 1000
        arrives = self._machine.now + self._hop_s
        self._machine.at(arrives, lambda: loop.do(call, lambda: node.run(images, then)))


class Graph:
    """The nodes as a replica of the ingress calls them."""

    def __init__(self, machine: Machine, setting: Setting, profile: Profile, remotes: dict[str, Remote]) -> None:
        """Make the inline nodes; the separate ones are those of all replicas."""

        def node(name: str) -> Node | Remote:
            return remotes.get(name) or make(machine, name, setting, profile)

        self._decode = node(TRANSFORMER)
        self._members = [node(name) for name in setting.members]
        self._rest = [remotes[name] for name in remotes if name != TRANSFORMER and name not in setting.members]
        self._exits = setting.exits or ()
        self._owed = [0.0 for _ in self._exits]

    def run(self, images: int, answered: Callable[[int], None]) -> None:
        """Execute the graph on a batch; `answered` is told how many images are done, maybe several times."""

        def finish() -> None:
            after(self._rest, images, lambda: answered(images))

        def ask() -> None:
            if self._exits:
                self._turn(0, images, answered)
                return
            arrive = joined(len(self._members), finish)
            for member in self._members:
                member.run(images, arrive)

        self._decode.run(images, ask)

    def _turn(self, number: int, images: int, answered: Callable[[int], None]) -> None:
        """Ask one member of a cascade; what it does not answer goes on to the next one."""

        def judge() -> None:
            leaving = images
            if number < len(self._owed):
                # What is owed keeps the share right on average, however small batches are.
                self._owed[number] += self._exits[number] * images
                leaving = min(images, int(self._owed[number]))
                self._owed[number] -= leaving
            if leaving:
                answered(leaving)
            if leaving < images:
                self._turn(number + 1, images - leaving, answered)

        self._members[number].run(images, judge)


def make(machine: Machine, name: str, setting: Setting, profile: Profile) -> Node:
    """A replica of a node."""
    side_by_side = name in setting.members and setting.exits is None and len(setting.members) > 1
    if name != TRANSFORMER and name not in setting.members:
        return Node(machine, None, 1, False)
    threads = setting.decoding if name == TRANSFORMER else setting.members[name]
    return Node(machine, profile.curve(name, threads, setting.streams.get(name)), threads, side_by_side)


def hop_ms(profile: Profile) -> float:
    """What a call to a separate node waits for: of what one client waits for more than with nodes in one process."""
    inline, separate = (profile.served[placement].delays_ms[MEDIAN] for placement in ("inline", "separate"))
    return max(0.0, separate - inline) / HOPS


def remotes(machine: Machine, setting: Setting, profile: Profile) -> dict[str, Remote]:
    """The separate nodes, which all replicas of the ingress share."""
    overhead, hop_s = profile.served["separate"].node, hop_ms(profile) / 1000

    def replicas(name: str) -> list[Node]:
        return [make(machine, name, setting, profile) for _ in range(setting.count(name))]

    return {name: Remote(machine, replicas(name), overhead, hop_s) for name in setting.separate if name != INGRESS}


def joined(parts: int, then: Then) -> Then:
    """What calls `then` once it was called as many times."""
    left = parts

    def arrive() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    return arrive


def after(nodes: list[Remote], images: int, then: Then) -> None:
    """Run nodes one after the other."""
    following: Iterator[Remote] = iter(nodes)

    def go_on() -> None:
        node = next(following, None)
        if node is None:
            then()
        else:
            node.run(images, go_on)

    go_on()
