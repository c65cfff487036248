"""A memory of what members predicted: an image that came before is not decoded, and not asked of them again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from deployments.contract.item import Item
from deployments.contract.nodes import Node
from graph.capabilities.cache.flow import Cache
from graph.capabilities.cache.identity import identity
from graph.capabilities.cache.metrics import CacheMetrics
from graph.capabilities.cache.settings import CacheSettings
from graph.capabilities.capability import Capability, Planned, Site

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig


def planned(config: EnsembleConfig, agreed: Agreement) -> Planned | None:
    """A cache, if the configuration has the section `cache`."""
    if config.cache is None:
        return None
    # Made once here, too: what is wrong with it is reported before anything starts.
    config.cache.store()
    return partial(Caching, config.cache, identity(config, agreed), len(agreed.labels))


class Caching(Capability):
    """Puts a cache before transformer and members. What it keeps is combined anew for each request."""

    keeps_predictions = True

    def __init__(self, settings: CacheSettings, identity: bytes, classes: int, _: Site) -> None:
        """Set how much is kept, what decides predictions besides the image, and the number of classes."""
        self._settings, self._identity, self._classes = settings, identity, classes
        self._cache: Cache | None = None

    def around_predictions(self, predicts: Node[Any, Any]) -> Node[Any, Any]:
        """The cache, and behind it what it asks."""
        store, counts = self._settings.store(), CacheMetrics()
        counts.follow(store)
        per_key = self._settings.per_key
        self._cache = Cache(predicts, store, self._identity, self._classes, counts, per_key)
        return self._cache

    def knows(self, image: bytes, item: Item) -> bool:
        """Whether it is in this process' memory."""
        return self._cache is not None and self._cache.knows(image, item)
