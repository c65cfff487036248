"""Every capability, one line each, in the order in which they are made and see what comes in."""

from __future__ import annotations

from graph.capabilities.cache.capability import Caching
from graph.capabilities.canary.capability import Canaries
from graph.capabilities.capability import Capability
from graph.capabilities.cascade.capability import Cascading
from graph.capabilities.feedback.capability import Feedback
from graph.capabilities.loading.capability import Loading
from graph.capabilities.receipt.capability import Receipts
from graph.capabilities.shadow.capability import Shadows

# A gate stands before both versions of a member, and feedback remembers which version a canary has noted.
CAPABILITIES: tuple[type[Capability], ...] = (
    Loading,
    Canaries,
    Shadows,
    Cascading,
    Caching,
    Feedback,
    Receipts,
)
