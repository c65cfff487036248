"""What every protocol serves from: the ingress, what is known of the models, and whether they have answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deployments.contract.errors import NotReady
from deployments.ingress.access import Access
from deployments.ingress.ingress import Ingress


@dataclass(frozen=True)
class Service:
    """What a protocol serves.

    Attributes:
        ingress: where images go.
        class_count: the number of classes.
        is_ready: whether every member has answered since the start.
        access: who may come in; None if all may.
    """

    ingress: Ingress
    class_count: int
    is_ready: Callable[[], bool]
    access: Access | None = None

    def check_ready(self) -> None:
        """Raise NotReady until every member has answered."""
        if not self.is_ready():
            raise NotReady("not every member has answered yet; try again later")
