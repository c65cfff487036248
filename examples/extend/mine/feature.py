"""A feature: it counts the answers of which the ensemble is not sure, and `/stats` shows the counts."""

from collections.abc import Sequence

import msgspec
from pydantic import Field

from deployments.contract.sections import Section
from deployments.ingress.protocol import Report
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from graph.feature import Feature, Site


class Counts(msgspec.Struct):
    """The field `unsure` of `/stats`."""

    answers: int = 0
    unsure: int = 0


class UnsureSettings(Section):
    """`features: {unsure: {below: 0.5}}`."""

    below: float = Field(0.5, ge=0, le=1, description="the probability below which an answer is counted")


class Unsure(Feature, Interceptor):
    """Counts."""

    sections = (UnsureSettings,)

    def __init__(self, _config: object, _agreed: object, site: Site) -> None:
        self._below, self._counts = site.settings.below, Counts()
        self.interceptor, self.reports = self, {"unsure": Report(Counts, lambda: self._counts)}

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """See answers on their way to the clients; warm-up images have none."""
        sent = batch.images
        for row, answer in zip(part.live, part.payload, strict=True):
            if positions[row] in sent:
                self._counts.answers += 1
                self._counts.unsure += answer.classification.probability < self._below
        return part
