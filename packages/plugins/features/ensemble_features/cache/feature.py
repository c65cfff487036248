"""A cache: an image that came before is answered from the members' remembered predictions."""

import hashlib
import json
from typing import Any

from ray.serve.metrics import Counter

from deployments.contract.nodes import Node
from deployments.ingress.protocol import Served, Service
from deployments.members.arithmetic import arithmetic
from deployments.observe.metrics import TaggedGauge, report_periodically
from ensemble_features.cache.flow import Cache
from ensemble_features.cache.stores import CacheSettings, Store, open_store
from graph.feature import Feature, Site, Stage
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# The version of the entries' format.
FORM = 4


def identity(config: EnsembleConfig, agreed: EnsembleSignature, settings: CacheSettings) -> bytes:
    """Digest the members' models, their pixels, what features change predictions by, and the CPU where others read."""
    decides: dict[str, Any] = {
        "form": FORM,
        "members": agreed.identities,
        "pixels": {name: agreed.preprocessing[name].key for name in agreed.identities},
        "ways": [way.words for way in config.ways],
        # Which members were called may depend on how they are combined.
        "combination": [config.combiner.method, config.combiner.weights or config.weights] if config.ways else [],
    }
    if settings.redis is not None:
        # Other machines share the entries.
        decides["arithmetic"] = arithmetic(config.nodes)
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).digest()


def follow(store: Store) -> None:
    """Report what the store holds."""
    used = TaggedGauge("ensemble_cache_bytes", "Memory of the cached images.")
    entries = TaggedGauge("ensemble_cache_entries", "Images cached in memory.")

    def report() -> None:
        used.set(store.bytes_used)
        entries.set(len(store))

    report_periodically(report, "cache metrics")


class Caching(Feature):
    """Puts a cache before transformer and members; each request combines the predictions anew."""

    order = 50
    sections = (CacheSettings,)

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        assert isinstance(site.settings, CacheSettings)
        self._settings, self._classes = site.settings, len(agreed.labels)
        self._identity = identity(config, agreed, site.settings)
        self._cache: Cache | None = None
        self._pinned = site.pinned

    def wrap(self, stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
        """Put the cache before the node that predicts."""
        if stage.kind != "predictions":
            return node
        follow(store := open_store(self._settings))
        saved = Counter(
            "ensemble_cache_saved_seconds",
            description="Time that decoding and the members took for images that were then cached.",
        )
        per_key = self._settings.per_key
        self._cache = Cache(node, store, self._identity, self._classes, saved.inc, per_key, self._pinned)
        return self._cache

    def serve(self, service: Service) -> Served:
        """Let images whose predictions this process keeps wait for no others."""
        if self._cache is not None:
            service.ingress.queue.knows = self._cache.knows
        return Served()
