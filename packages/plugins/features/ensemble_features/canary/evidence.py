"""The evidence against a canary: a sequential test that may be looked at after every image, and that no client decides.

Source: Wald's sequential test, 1945, https://doi.org/10.1214/aoms/1177731118. Its score may be looked at as often as
one likes: a canary that is within the bound reaches `LIMIT` with a probability of at most 1 / ODDS. A score that has
fallen to `-LIMIT` is kept there, and reaches `LIMIT` with one of at most 1 / ODDS² for each answer from then on.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

Reason = Literal["failures", "latency", "answers"]
# A canary is rolled back when what was seen is so many times likelier of a bad one than of one within the bound.
ODDS = 400
LIMIT = math.log(ODDS)
# The most clients that are told apart; of more the one that was seen longest ago is forgotten.
MOST_CLIENTS = 100


@dataclass(frozen=True)
class Question:
    """A kind of evidence, and how often it may speak against a good canary.

    Attributes:
        reason: why a canary is rolled back that fails it.
        words: a sentence with the numbers `against` and `total`.
        allowed: the highest share of answers against a canary that is good.
        clearly: the share of a canary that is bad; the nearer the two, the more images it takes to tell.
    """

    reason: Reason
    words: str
    allowed: float
    clearly: float

    def step(self, against: bool) -> float:
        """Return one answer's step of the score: the logarithm of how much likelier a bad canary gives this answer."""
        if against:
            return math.log(self.clearly / self.allowed)
        return math.log((1 - self.clearly) / (1 - self.allowed))


class Score:
    """The answers to a question. Each client's part can be left out.

    Attributes:
        total: the score of all answers.
        is_good: whether it has been at its lowest without any one client, which a bad canary's seldom is, and has not
            risen to 0 since.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.total, self.is_good = 0.0, False
        self._steps = question.step(False), question.step(True)
        self._against = self._total = 0
        # By client: the score of everything that the others sent.
        self._others: OrderedDict[str, float] = OrderedDict()

    def add(self, client: str, against: bool, weight: float = 1.0) -> None:
        """Count an answer that a client's image gave; a weight below 1 counts it as a part of one."""
        self._total += 1
        self._against += against
        step = weight * self._steps[against]
        self._others.setdefault(client, self.total)
        self._others.move_to_end(client)
        if len(self._others) > MOST_CLIENTS:
            self._others.popitem(last=False)
        for other, score in self._others.items():
            if other != client:
                self._others[other] = _bounded(score + step)
        self.total = _bounded(self.total + step)
        worst = max(self._without_each)
        self.is_good = worst <= -LIMIT or (self.is_good and worst < 0)

    @property
    def without_any_client(self) -> float:
        """The least score that is left without one of the clients; a client that is alone is not left out."""
        return min(self._without_each)

    @property
    def _without_each(self) -> list[float]:
        return [self.total, *(self._others.values() if len(self._others) > 1 else ())]

    def __str__(self) -> str:
        return self.question.words.format(against=self._against, total=self._total)


class Allowance:
    """How often each of the latest keys may still count."""

    def __init__(self, times: int, most: int = 10_000) -> None:
        """Set how often a key may count, and how many keys are remembered."""
        self._times, self._most = times, most
        self._used: OrderedDict[Hashable, int] = OrderedDict()

    def take(self, key: Hashable) -> bool:
        """Count a key; tell whether it may still count."""
        used = self._used.pop(key, 0)
        self._used[key] = used + 1
        if len(self._used) > self._most:
            self._used.popitem(last=False)
        return used < self._times


def _bounded(score: float) -> float:
    # A canary that becomes bad late has to make up for no more than this.
    return max(-LIMIT, score)
