"""A cache: an image that came before is answered from the members' remembered predictions."""

from __future__ import annotations

from typing import Any

from deployments.contract.item import Item
from deployments.contract.nodes import Node
from graph.features.cache.flow import Cache
from graph.features.cache.identity import identity
from graph.features.cache.metrics import CacheMetrics
from graph.features.cache.stores import open_store
from graph.features.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


class Caching(Feature):
    """Puts a cache before transformer and members; what it remembers is combined anew for each request."""

    order = 50
    section = "cache"
    keeps_predictions = True

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, _: Site) -> None:
        assert config.cache is not None
        self._settings, self._identity, self._classes = config.cache, identity(config, agreed), len(agreed.labels)
        self._cache: Cache | None = None

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Whether there is a section `cache`; raises ConfigurationError for a Redis that can't be used."""
        # Made here as well, so that errors are reported before anything starts.
        return config.cache is not None and open_store(config.cache) is not None

    def around_predictions(self, predicts: Node[Any, Any]) -> Node[Any, Any]:
        """Put the cache before the node that predicts."""
        store, metrics = open_store(self._settings), CacheMetrics()
        metrics.follow(store)
        self._cache = Cache(predicts, store, self._identity, self._classes, metrics.cache, self._settings.per_key)
        return self._cache

    def knows(self, image: bytes, item: Item) -> bool:
        """Whether an image is in this process' memory."""
        return self._cache is not None and self._cache.knows(image, item)
