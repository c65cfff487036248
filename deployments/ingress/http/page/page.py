"""`GET /`: a page to drop a photograph on, of files that ship with the package; nothing is fetched from elsewhere."""

from __future__ import annotations

import hashlib
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from deployments.ingress.http.routes import Route, Routes
from deployments.ingress.service import Service
from deployments.observe.observer import Call

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Kept, but asked for each time: an upgrade of the server is an upgrade of the page.
    "Cache-Control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/script.js": ("script.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Page:
    """Answers `/` and the files of its page, unless the configuration says that there is none."""

    def __init__(self, service: Service) -> None:
        """Read the files."""
        told = {
            "jaeger": service.page.jaeger_url or "",
            "classes": str(service.class_count),
            "strategy": service.strategy,
        }
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for path, (name, media_type) in FILES.items() if service.page.enabled else ():
            content = (FOLDER / name).read_bytes()
            if path == "/":
                for key, value in told.items():
                    content = content.replace(f"{{{key}}}".encode(), escape(value).encode())
            self._files[path] = content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    def routes(self) -> Routes:
        """The page and its files."""
        return {path: Route("GET", self._answer, "", open=True) for path in self._files}

    async def _answer(self, request: Request, _call: Call) -> Response:
        content, media_type, tag = self._files[request.scope["path"]]
        headers = {**HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)
