"""A siege: many hostile inputs at once, and among them a client that means well."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ensemble_serving.transports import NoResponse, Request, Response, Transport, connect, once
from lab.faults.hostile.inputs import Input
from lab.faults.hostile.sending import Outcome, Sender

# Failures of a kind that are told.
MOST_TOLD = 5
UNAVAILABLE = 503


@dataclass
class Verdict:
    """What became of the inputs of one kind.

    Attributes:
        statuses: how often each was answered.
        slowest_s: the longest that one took, seconds.
        failures: what the server did wrong, by the input's number.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, outcome: Outcome) -> None:
        """Take an outcome into account."""
        self.statuses[outcome.status] += 1
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        if outcome.failure is not None:
            self.failures[number] = outcome.failure


@dataclass
class Siege:
    """What came of it.

    Attributes:
        verdicts: by the kind of input.
        well_meant: how often the client that means well asked.
        wrong: what it was answered wrong.
        slowest_well_meant_s: the longest that it waited, seconds.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    well_meant: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest_well_meant_s: float = 0.0

    @property
    def failures(self) -> list[str]:
        """Every failure that is to be told."""
        found = [f"a well formed request was answered {each}" for each in self.wrong[:MOST_TOLD]]
        for kind, verdict in self.verdicts.items():
            found += [f"{kind}, input {number}: {what}" for number, what in list(verdict.failures.items())[:MOST_TOLD]]
        return found


class WellMeaning:
    """A client that sends a photograph, and knows what the answer is."""

    def __init__(self, url: str, image: bytes) -> None:
        """Ask once while nothing is wrong: what is answered now is right.

        Args:
            url: the server's root.
            image: the photograph.
        """
        self.url, self._request = url, Request("/classify", image)
        self._right = self._label(once(url, self._request))

    @staticmethod
    def _label(answer: Response) -> str:
        return str(json.loads(answer.body)["label"]) if answer.ok else f"{answer.status} {answer.body!r}"

    async def ask(self, transport: Transport) -> str | None:
        """What was wrong about the answer; None if it was right, or a refusal that says when to come again."""
        try:
            answer = await transport.send(self._request)
        except NoResponse as err:
            return f"{type(err).__name__}: {err}"
        label = self._label(answer)
        refused = answer.status == UNAVAILABLE and answer.retry_after_s is not None
        return None if label == self._right or refused else label


async def besiege(
    sender: Sender,
    inputs: Iterable[tuple[int, Input]],
    well_meaning: WellMeaning,
    *,
    at_once: int = 16,
    rest_s: float = 0.1,
    done: Callable[[], object] = lambda: None,
) -> Siege:
    """Send inputs, each with its number, so many at once, and ask well meant every so often.

    Args:
        sender: sends them.
        inputs: made as they are sent.
        well_meaning: asks on a connection of its own, again and again.
        at_once: how many are under way.
        rest_s: between two well meant requests, seconds.
        done: called after each.
    """
    siege, over, queue, turn = Siege(), asyncio.Event(), iter(inputs), asyncio.Lock()

    async def attack() -> None:
        while True:
            # Making one may take a second, in which nothing would be read.
            async with turn:
                following = await asyncio.to_thread(next, queue, None)
            if following is None:
                return
            number, sent = following
            outcome = await sender.send(sent)
            siege.verdicts.setdefault(sent.kind, Verdict()).add(number, outcome)
            done()

    async def ask() -> None:
        transport = connect(well_meaning.url)
        while not over.is_set():
            began = time.monotonic()
            wrong = await well_meaning.ask(transport)
            siege.well_meant += 1
            siege.slowest_well_meant_s = max(siege.slowest_well_meant_s, time.monotonic() - began)
            if wrong is not None:
                siege.wrong.append(wrong)
            await asyncio.sleep(rest_s)
        await transport.close()

    asking = asyncio.ensure_future(ask())
    try:
        await asyncio.gather(*(attack() for _ in range(at_once)))
    finally:
        over.set()
        await asking
    return siege


def families(siege: Siege) -> dict[str, Verdict]:
    """The verdicts of a siege by the family of the inputs, in their order of the alphabet."""
    together: dict[str, Verdict] = {}
    for kind, verdict in sorted(siege.verdicts.items()):
        family = together.setdefault(kind.partition(":")[0], Verdict())
        family.statuses += verdict.statuses
        family.slowest_s = max(family.slowest_s, verdict.slowest_s)
        family.failures |= verdict.failures
    return together


def told(statuses: Counter[str]) -> str:
    """How often each status was seen, the most frequent first."""
    return ", ".join(f"{status} ({count:,})" for status, count in statuses.most_common())
