"""What decides the members' scores besides the image: applications that differ in it share no cache entries."""

from __future__ import annotations

import hashlib
import json

from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# The version of the entries' format.
FORM = 2


def identity(config: EnsembleConfig, agreed: EnsembleSignature) -> bytes:
    """Digest the members' models, their pixels, and the settings by which a cascade chooses members."""
    cascade = config.ensemble.cascade
    decides = {
        "form": FORM,
        "members": agreed.identities,
        "pixels": {name: agreed.preprocessing[name].key for name in agreed.identities},
        "cascade": None
        if cascade is None
        else {
            **cascade.model_dump(include={"order", "exit_at"}),
            "method": config.combiner.method,
            "weights": config.combiner.weights or config.weights,
        },
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).digest()
