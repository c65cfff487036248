"""Batches for tests, and what they say."""

from deployments.contract.batch import Batch
from deployments.contract.item import Item


def batch(payload, *items):
    """A batch of these items, or of as many plain ones as there are rows."""
    rows = len(next(iter(payload.values()))) if isinstance(payload, dict) else len(payload)
    return Batch(payload, items or (Item(),) * rows)


def errors(batch):
    """Why images failed, by position."""
    return {position: item.error for position, item in enumerate(batch.items) if item.error is not None}


def notes(batch):
    """What nodes noted of the batch, once each, in order."""
    return batch.notes
