"""Five faults that no server had, planted into a recorded history: the checker must find each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lab.faults.history.check import TOLERANCE
from lab.faults.history.record import History, Record

# Yields records that a fault can change, each with its changed form.
Plant = Callable[[History, Sequence[Record]], Iterator[tuple[Record, Record]]]
NEVER = 99


def _with(record: Record, **answer: Any) -> Record:
    return replace(record, answer={**record.answer, **answer})


def neighbour(_: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Give a request the answer to another image, sent at about the same time."""
    for one in answers:
        for other in answers:
            near = other.overlaps(one.start - 1, one.end + 1) and other.versions == one.versions
            if near and other.subject != one.subject and _differ(one, other):
                yield one, replace(one, answer={**other.answer, "cache": one.answer.get("cache")})


def _differ(one: Record, other: Record) -> bool:
    theirs = other.predictions
    shared = [(values, theirs[name]) for name, values in one.predictions.items() if name in theirs]
    return any(np.abs(np.subtract(*pair)).max() > TOLERANCE for pair in shared)


def stale(history: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let a cached answer be older than any request that stored it."""
    for one in answers:
        if one.is_hit:
            yield one, _with(one, cache={"hit": True, "age_s": one.end - history.records[0].start + 60})


def undeployed(_: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let an answer come from a version that nobody deployed."""
    for one in answers:
        yield one, _with(one, model_versions={**one.versions, next(iter(one.versions)): NEVER})


def lost(history: History, _: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Lose a label after its 200, though no ingress was away since: the same label is accepted once more."""
    since = max((gone.end for gone in history.away if gone.part == "Ingress"), default=float("-inf"))
    kept = {each.subject for each in history.records if each.kind == "label" and each.start > since}
    for one in history.records:
        if one.kind == "audit" and one.code == "already_labelled" and one.subject in kept:
            yield one, replace(one, status=200, answer={"accepted": 1})


def double_canary(history: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let a user get the other version between two answers of the canary."""
    for member, number in history.canaries.items():
        given = [each for each in answers if each.versions.get(member) == number]
        stable = next(span.version for span in history.in_force if span.version != number)
        for one in given:
            theirs = [each for each in given if each.user == one.user]
            if any(each.end < one.start for each in theirs) and any(each.start > one.end for each in theirs):
                yield one, _with(one, model_versions={**one.versions, member: stable})


# By name: the fault, and the rule that it breaks.
PLANTED: dict[str, tuple[Plant, str]] = {
    "neighbour": (neighbour, "answer"),
    "stale": (stale, "cache"),
    "undeployed": (undeployed, "version"),
    "lost": (lost, "feedback"),
    "double canary": (double_canary, "canary"),
}


def planted(history: History, plant: Plant, seed: int) -> History | None:
    """Return the history with a fault in it; None where the history has nothing to plant the fault into."""
    answers = [each for each in history.records if each.kind == "image" and each.status == 200]
    random.Random(seed).shuffle(answers)
    for old, new in plant(history, answers):
        return replace(history, records=tuple(new if each is old else each for each in history.records))
    return None
