"""What decides the members' scores besides the image: two applications share a cache's entries only if all is alike."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig


# Of the entries of a cache: other entries, another number.
FORM = 1


def identity(config: EnsembleConfig, agreed: Agreement) -> bytes:
    """A digest of the members' models, their pixels, and, in a cascade, of what decides whom it asks.

    Raises:
        ConfigurationError: a member can't be served.
    """
    cascade = config.ensemble.cascade
    decisive = (*config.voters, *config.canaries.values())
    decides = {
        "form": FORM,
        "members": {member.name: member.identity(config.model_repository) for member in decisive},
        "pixels": {member.name: agreed.preprocessing[member.name].key for member in decisive},
        "cascade": None
        if cascade is None
        else {
            **cascade.model_dump(include={"order", "exit_at"}),
            "method": config.combiner.method,
            "weights": config.combiner.weights or config.weights,
        },
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).digest()
