"""Receipts: an answer says what it cost, where its caller asks for that by the option `receipt`."""

from __future__ import annotations

from deployments.contract.cpu_accounting import METER
from graph.features.feature import Feature
from graph.features.receipt.flow import ReceiptInterceptor
from graph.schema import EnsembleConfig


class Receipts(Feature):
    """Adds receipts to answers; in the process of the ingress, what belongs to no node is the ingress' share."""

    order = 70
    of_any_shape = True

    def __init__(self, *_: object) -> None:
        METER.keeps_rest = True
        self.interceptor = ReceiptInterceptor()

    @classmethod
    def wanted(cls, _: EnsembleConfig) -> bool:
        """Take part in every application."""
        return True
