"""The page at `/`: files that ship with the package, to drop images on; nothing is fetched from elsewhere."""

import hashlib
from html import escape
from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.sections import Section
from deployments.ingress.protocol import Served, Service
from deployments.ingress.routes import Route, plain
from deployments.observe.observer import Call
from ensemble_features.page import live
from ensemble_features.page.stats import Stats
from graph.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser keeps it, but looks each time whether it has changed.
    "Cache-Control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    # Photographs in the public domain: a cat by Stefan van der Walt, a coffee by Rachel Michetti, a rocket by SpaceX.
    **{f"/page/{name}.jpg": (f"{name}.jpg", "image/jpeg") for name in ("cat", "coffee", "rocket")},
    **{f"/page/{file.name}": (file.name, "text/javascript") for file in sorted(FOLDER.glob("*.js"))},
}
ABOUT = "/page/about"
REMOTE = "remote"


class PageSettings(Section):
    """The page at `/`."""

    enabled: bool = Field(True, description="whether there is a page at /, and /stats that it draws")
    jaeger_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s\"'<>@]+$",
        max_length=200,
        description="address of Jaeger's page, as a browser reaches it; trace ids become links to it",
    )


class Page(Feature):
    """Serves the page and its files, and the figures that it draws; nothing if the configuration turns it off."""

    always = of_any_shape = True
    sections = (PageSettings,)

    def __init__(self, config: EnsembleConfig, _agreed: EnsembleSignature, site: Site) -> None:
        self._config, self._site = config, site
        self._settings = site.settings if isinstance(site.settings, PageSettings) else PageSettings()

    def serve(self, service: Service) -> Served:
        """Serve the paths of the page, its files and its figures."""
        if not self._settings.enabled:
            return Served()
        service.ingress.observer.watch(stats := Stats())
        files = self._files(len(service.labels))

        async def answer(request: Request, _: Call) -> Response:
            content, media_type, tag = files[request.scope["path"]]
            headers = {**HEADERS, "ETag": tag}
            if tag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            return Response(content, media_type=media_type, headers=headers)

        async def describe(_: Request, _call: Call) -> Response:
            response = plain(self._about(service))
            response.headers["Cache-Control"] = "no-store"
            return response

        return Served(
            {
                **live.routes(service, stats, self._site.application, self._site.replica),
                ABOUT: Route("GET", describe, ""),
                **{path: Route("GET", answer, "", open=True) for path in files},
            }
        )

    def _files(self, classes: int) -> dict[str, tuple[bytes, str, str]]:
        """Read each file: its content, its type and its tag, by path."""
        values = {"jaeger": self._settings.jaeger_url or "", "classes": str(classes)}
        files = {}
        for path, (name, media_type) in FILES.items():
            content = (FOLDER / name).read_bytes()
            if path == "/":
                for key, value in values.items():
                    content = content.replace(f"{{{key}}}".encode(), escape(value).encode())
            files[path] = content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        return files

    def _about(self, service: Service) -> dict[str, Any]:
        """Describe the ensemble before there is an answer; with keys, only owners of a key see this."""
        config, versions = self._config, self._site.versions
        kinds = {name: info.kind for name, (_, info) in service.members.items()}
        weights = {**dict.fromkeys(config.weights, 0.0), **(config.combiner.weights or config.weights)}
        members = [
            {"name": name, "weight": weight, "version": versions.get(name, ""), "kind": kinds.get(name, REMOTE)}
            for name, weight in weights.items()
        ]
        return {
            "classes": list(service.labels),
            "members": members,
            "strategy": strategy(config),
            "reports": [name for feature in service.features for name in feature.reports],
        }


def strategy(config: EnsembleConfig) -> str:
    """Describe how the members' answers become one."""
    method, count = config.combiner.method.replace("_", " "), len(config.voters)
    together = f"{method} of {count} members, of which {config.ensemble.quorum or count} must answer"
    return "; ".join((*(way.words for way in config.ways), together))
