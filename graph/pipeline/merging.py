"""The members' answers to a batch as one batch: each image with the answers that it has, and those that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError
from deployments.contract.item import Item
from deployments.contract.payload import MemberProbabilities, PixelSets, Probabilities

# A member's answer to a batch, or why there is none.
Outcome = Batch[Probabilities] | EnsembleError


def collect(asked: Batch[PixelSets], outcomes: Mapping[str, Outcome], quorum: int) -> Batch[MemberProbabilities]:
    """The members' answers to a batch, by name; an image that fewer than `quorum` answered has failed.

    Its error is that of the first member that failed. A row of NaN stands for an answer that is missing.
    """
    items = tuple(_merged(item, position, outcomes, quorum) for position, item in enumerate(asked.items))
    live = [position for position, item in enumerate(items) if item.error is None]
    rows = {name: _rows(outcome, live) for name, outcome in outcomes.items() if isinstance(outcome, Batch)}
    return Batch({name: part for name, part in rows.items() if part is not None}, items)


def split(outcomes: Mapping[str, Outcome], positions: Sequence[int]) -> dict[str, Outcome]:
    """The members' answers to some of the images, by position; see `Batch.split`."""
    return {name: each.split(positions) if isinstance(each, Batch) else each for name, each in outcomes.items()}


def _merged(item: Item, position: int, outcomes: Mapping[str, Outcome], quorum: int) -> Item:
    """An image with what its copies, one from each member that answered the batch, have gained."""
    if item.error is not None:
        return item
    copies = [outcome.items[position] for outcome in outcomes.values() if isinstance(outcome, Batch)]
    errors = {name: _error(outcome, position) for name, outcome in outcomes.items()}
    failed = {name: error for name, error in errors.items() if error is not None}
    too_few = len(outcomes) - len(failed) < quorum
    before = len(item.steps)
    # A canary that did not answer has removed the member from its copy's trials.
    trials = tuple(name for name in item.trials if all(name in copy.trials for copy in copies)) if item.trials else ()
    return replace(
        item,
        trials=trials,
        versions={name: version for copy in copies for name, version in copy.versions.items()},
        missing={} if too_few else {name: error.code for name, error in failed.items()},
        error=next(iter(failed.values())) if too_few else None,
        steps=(*item.steps, *(step for copy in copies for step in copy.steps[before:])),
    )


def _error(outcome: Outcome, position: int) -> EnsembleError | None:
    return outcome.items[position].error if isinstance(outcome, Batch) else outcome


def _rows(answer: Batch[Probabilities], live: Sequence[int]) -> Probabilities | None:
    """A member's answers to these images; None if it has none."""
    answered = answer.live
    if answered == live:
        return answer.payload
    row_of = {position: row for row, position in enumerate(answered)}
    pairs = [(row, row_of[position]) for row, position in enumerate(live) if position in row_of]
    if not pairs:
        return None
    result = np.full((len(live), answer.payload.shape[1]), np.nan, np.float32)
    to, of = zip(*pairs, strict=True)
    result[list(to)] = answer.payload[list(of)]
    return result
