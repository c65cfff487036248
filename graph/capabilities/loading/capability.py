"""Loading: operators load and unload members while the application serves, by the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from deployments.contract.errors import NotFound
from deployments.ingress.grpc.calls import Calls
from deployments.ingress.http.routes import Routes
from deployments.ingress.service import Service
from graph.capabilities.capability import Capability, Planned, Site
from graph.capabilities.loading.deploying import Redeploying
from graph.capabilities.loading.gates import Gates
from graph.capabilities.loading.grpc import GrpcRepository
from graph.capabilities.loading.loadable import Loadable, loadable
from graph.capabilities.loading.loading import Loading
from graph.capabilities.loading.routes import HttpRepository

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

OFF = "loading and unloading is off; access.operators turns it on"
# In `user_config`, and beside the nodes, of which none has such a name.
SECTION, GATES = "loading", "loading of members"


def planned(config: EnsembleConfig, agreed: Agreement) -> Planned | None:
    """Loading, if `access.operators` names who may; without, what says so."""
    return partial(Loads, loadable(config, agreed)) if config.access.operators else NoLoading


class NoLoading(Capability):
    """Refuses to load: the paths and methods are there in every application."""

    def __init__(self, _: Site) -> None:
        """Set nothing."""

    def _refuse(self, _: str) -> Loading:
        raise NotFound(OFF)

    def routes(self, service: Service) -> Routes:
        """The paths, which refuse."""
        return HttpRepository(service.ingress, self._refuse).routes()

    def calls(self, service: Service) -> Calls:
        """The methods, which refuse."""
        return GrpcRepository(self._refuse).calls()


class Loads(Capability):
    """Puts gates before the members that can be unloaded, and changes which are open."""

    announces = ("model_repository",)

    def __init__(self, loadable: Loadable, site: Site) -> None:
        """Set what can be loaded."""
        self._loadable, self._versions = loadable, site.versions
        self._gates = Gates(set(loadable.members), loadable.spare, site.versions)
        self._changes = Redeploying(site.application, loadable)
        self._loading: Loading | None = None
        self.nodes = self._gates.before(site.nodes)
        self.live = {GATES: self._gates}
        self.sections = {SECTION: GATES}

    @property
    def unloaded(self) -> Collection[str]:
        """The members that are not asked."""
        return self._gates.settings.unloaded

    def routes(self, service: Service) -> Routes:
        """The extension's paths."""
        return HttpRepository(service.ingress, self._served(service).permitted).routes()

    def calls(self, service: Service) -> Calls:
        """The extension's methods."""
        return GrpcRepository(self._served(service).permitted).calls()

    def _served(self, service: Service) -> Loading:
        """What loads members, one for every protocol: it makes one change at a time."""
        if self._loading is None:
            operators = self._loadable.operators
            self._loading = Loading(operators, self._gates, service.members, self._versions, self._changes)
        return self._loading
