"""Receipts: an answer says what it cost, where its caller asks for that by the option `receipt`."""

from __future__ import annotations

from deployments.contract.meter import METER
from graph.capabilities.capability import Capability
from graph.capabilities.receipt.flow import Issuing


class Receipts(Capability):
    """Adds receipts to answers; in the process of the ingress, what belongs to no node is the ingress' share."""

    of_any_shape = True

    def __init__(self, *_: object) -> None:
        METER.keeps_rest = True
        self.interceptor = Issuing()
