"""Every model that the protocol serves, by name."""

from deployments.contract.errors import NotFound
from deployments.ingress.http.documents import release
from deployments.ingress.open_inference.metadata import EXTENSIONS, SERVER, IndexEntry, ServerMetadata
from deployments.ingress.open_inference.model import MODEL, Ensemble, Member, Model
from deployments.ingress.options import MOST_QUOTED
from deployments.ingress.protocol import Service
from deployments.ingress.statistics import AllStatistics


class Catalog:
    """The models of an application; each is ready when the application is, but for members that are left out."""

    def __init__(self, service: Service) -> None:
        """Set the models to serve."""
        self._service = service
        self.models: dict[str, Model] = {MODEL: Ensemble(service.ingress, service.labels)}
        for name, (ingress, info) in service.members.items():
            self.models[name] = Member(name, ingress, info, service.labels, service.versions)

    @property
    def server(self) -> ServerMetadata:
        """The server's name, version and extensions."""
        service = self._service
        more = [name for protocol in service.protocols for name in protocol.announces(service)]
        more += [name for served in service.served for name in served.announces]
        return ServerMetadata(SERVER, release(), [*EXTENSIONS, *more])

    def find(self, name: str, version: str = "") -> Model:
        """Find a model by its name and, if the request has one, its version.

        Raises:
            NotFound: there is none.
        """
        model = self.models.get(name)
        if model is None:
            raise NotFound(f"there is no model {name[:MOST_QUOTED]!r}; the models are {sorted(self.models)}")
        if version and version not in model.metadata.versions:
            wrong, known = version[:MOST_QUOTED], model.metadata.versions[0]
            raise NotFound(f"model {name!r} has no version {wrong!r}; its version is {known!r}")
        return model

    def is_ready(self, name: str, version: str = "") -> bool:
        """Tell whether a model is ready; a model that does not exist is not."""
        try:
            self.find(name, version)
        except NotFound:
            return False
        return name not in self._service.left_out and self._service.is_ready()

    def index(self, ready: bool = False) -> list[IndexEntry]:
        """List every model and whether it is ready, or only the ready ones."""
        unready = "" if self._service.is_ready() else "not every member has answered"
        reasons = dict.fromkeys(self.models, unready)
        reasons |= {name: error.code for name, error in self._service.left_out.items()}
        return [
            IndexEntry(name, version, "UNAVAILABLE" if reasons[name] else "READY", reasons[name])
            for name, model in self.models.items()
            for version in model.metadata.versions
            if not (ready and reasons[name])
        ]

    def statistics(self, *models: Model) -> AllStatistics:
        """Report the counts of these models, or of all models."""
        return AllStatistics(
            [
                model.statistics.reported(model.metadata.name, model.metadata.versions[0])
                for model in models or self.models.values()
            ]
        )
