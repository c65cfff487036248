"""Every capability, in the order in which each is made and looks at what comes in: one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graph.capabilities.cache.capability import planned as cache
from graph.capabilities.canary.capability import planned as canary
from graph.capabilities.capability import Planned
from graph.capabilities.cascade.capability import planned as cascade
from graph.capabilities.cascade.settings import EnsembleSettings
from graph.capabilities.feedback.capability import planned as feedback
from graph.capabilities.loading.capability import planned as loading
from graph.capabilities.shadow.capability import planned as shadow

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

    Plans = Callable[[EnsembleConfig, Agreement], Planned | None]

# A gate stands before both versions of a member, and feedback remembers what a canary has noted of an answer.
CAPABILITIES = (
    loading,
    canary,
    shadow,
    cascade,
    cache,
    feedback,
)


# Those that an application has whose nodes are joined in another way: the others are part of how they are joined.
OF_ANY_SHAPE = (loading, feedback)


def planned(config: EnsembleConfig, agreed: Agreement) -> tuple[Planned, ...]:
    """The capabilities that a configuration asks for.

    Raises:
        ConfigurationError: one can't do what is asked.
    """
    return _planned(CAPABILITIES, config, agreed)


def of_any_shape(config: EnsembleConfig, agreed: Agreement, quorum: int | None) -> tuple[Planned, ...]:
    """Those of an application of another shape, of which so many members must answer; None for all."""
    asking = EnsembleSettings(quorum=quorum)
    return _planned(OF_ANY_SHAPE, config.model_copy(update={"ensemble": asking, "feedback": None}), agreed)


def _planned(plans: Sequence[Plans], config: EnsembleConfig, agreed: Agreement) -> tuple[Planned, ...]:
    made = (plan(config, agreed) for plan in plans)
    return tuple(each for each in made if each is not None)
