"""Loading: operators load and unload members while the application serves, by the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from deployments.ingress.protocol import Service
from deployments.ingress.routes import Calls, Routes
from ensemble_rollout.loading import requests
from ensemble_rollout.loading.control import ModelControl
from ensemble_rollout.loading.deploying import loadable, on_head
from ensemble_rollout.loading.flow import UnloadGate
from graph.features.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

SECTION = "loading"


class Loading(Feature):
    """Puts gates before the members that can be unloaded, which the keys in `access.operators` may use.

    Without operators its paths and methods refuse.
    """

    # A gate stands before both versions of a member.
    order = 10
    of_any_shape = True

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        self._gates = UnloadGate(set(loadable(config)), config.spare, site.versions, site.loaded)
        deploy = partial(on_head, site.application, config, agreed)
        self._control = ModelControl(config.access.operators, self._gates, deploy)
        if config.access.operators:
            self.announces = ("model_repository",)
            self.nodes = self._gates.put_before(site.nodes)
            self.live = {SECTION: self._gates}

    @classmethod
    def wanted(cls, _: EnsembleConfig) -> bool:
        """Take part in every application."""
        return True

    @property
    def unloaded(self) -> Collection[str]:
        """The members that are not asked."""
        return self._gates.settings.unloaded

    def routes(self, service: Service) -> Routes:
        """Make the extension's paths."""
        self._control.members = service.members
        return requests.routes(service.ingress, self._control)

    def calls(self, service: Service) -> Calls:
        """Make the extension's methods."""
        self._control.members = service.members
        return requests.calls(self._control)
