"""`GET /`: a page to drop an image on, of files that ship with the package; nothing is fetched from elsewhere."""

from __future__ import annotations

import hashlib
from html import escape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from deployments.ingress.protocol import Service
from deployments.ingress.routes import Route, Routes, plain
from deployments.observe.observer import Call

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


def routes(service: Service) -> Routes:
    """Serve the page and its files; nothing if the configuration has no page."""
    if not service.page.enabled:
        return {}
    values = {"jaeger": service.page.jaeger_url or "", "classes": str(len(service.labels))}
    files: dict[str, tuple[bytes, str, str]] = {}
    for path, (name, media_type) in FILES.items():
        content = (FOLDER / name).read_bytes()
        if path == "/":
            for key, value in values.items():
                content = content.replace(f"{{{key}}}".encode(), escape(value).encode())
        files[path] = content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def answer(request: Request, _: Call) -> Response:
        content, media_type, tag = files[request.scope["path"]]
        headers = {**HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    async def describe(_: Request, _call: Call) -> Response:
        response = plain(about(service))
        response.headers["Cache-Control"] = "no-store"
        return response

    return {ABOUT: Route("GET", describe, ""), **{path: Route("GET", answer, "", open=True) for path in files}}


def about(service: Service) -> dict[str, Any]:
    """Describe the ensemble for the page before there is an answer; with keys, only owners of a key see this."""
    kinds = {name: offer.kind for name, (_, offer) in service.members.items()}
    members = [
        {"name": name, "weight": weight, "version": service.versions.get(name, ""), "kind": kinds.get(name, REMOTE)}
        for name, weight in service.weights.items()
    ]
    reports = [name for extension in service.extensions for name in extension.reports]
    return {"classes": list(service.labels), "members": members, "strategy": service.strategy, "reports": reports}
