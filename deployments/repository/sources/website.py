"""Models on a website, which lists its files in a manifest."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import httpx

from deployments.repository.errors import SourceError, Unreachable
from deployments.repository.repository import VERSION
from deployments.repository.sources import manifest
from deployments.repository.sources.location import LOOPBACK, Location
from deployments.repository.sources.source import File, Listing

TIMEOUT = httpx.Timeout(30, connect=10)
PIECE = 1024 * 1024


class Website:
    """Reads a website by HTTPS; the certificates to trust are the system's, or those of `SSL_CERT_FILE`."""

    def __init__(self, location: Location) -> None:
        """Set the address of the repository's folder."""
        self._location = location

    def list(self, name: str) -> Listing:
        """See `Source.list`; a manifest with another SHA-256 than that of the configuration is refused."""
        content = b""
        for piece in self.read(manifest.MANIFEST):
            content += piece
            if len(content) > manifest.MAX_MANIFEST_BYTES:
                raise SourceError(f"{self._location}: {manifest.MANIFEST} is longer than a manifest may be")
        pinned, digest = self._location.manifest, hashlib.sha256(content).hexdigest()
        if pinned is not None and digest != pinned:
            raise SourceError(
                f"{self._location}: {manifest.MANIFEST} has the SHA-256 {digest}, the configuration wants {pinned}; "
                "if you changed the repository, change the configuration, too"
            )
        listed = manifest.read(content).models.get(name, {})
        return {
            int(version): {path: File(each.size, each.sha256, each.sha256) for path, each in files.items()}
            for version, files in listed.items()
            if VERSION.fullmatch(version)
        }

    def read(self, path: str) -> Iterator[bytes]:
        """See `Source.read`."""
        url = f"{self._location}/{quote(path)}"
        with _errors_as_ours(url), self._client() as client, client.stream("GET", url) as answer:
            if answer.status_code in {404, 410}:
                raise SourceError(f"{url} is not there ({answer.status_code})")
            if answer.status_code in {401, 403}:
                raise SourceError(f"{url} is refused ({answer.status_code}): a website must give models to everybody")
            if answer.status_code != 200:
                raise Unreachable(f"{url} was answered with {answer.status_code}; it is tried again")
            yield from answer.iter_raw(PIECE)

    def _client(self) -> httpx.Client:
        return httpx.Client(
            verify=ssl.create_default_context(),
            timeout=TIMEOUT,
            headers={"Accept-Encoding": "identity"},
            follow_redirects=True,
            max_redirects=5,
            event_hooks={"request": [self._check_redirect]},
        )

    def _check_redirect(self, request: httpx.Request) -> None:
        """Refuse a redirect from HTTPS to plain HTTP, or from this machine to plain HTTP on another one."""
        is_ours = self._location.scheme == "http" and request.url.host in LOOPBACK
        if request.url.scheme != "https" and not is_ours:
            raise SourceError(f"{self._location} leads to {request.url}, which is not https://")


@contextmanager
def _errors_as_ours(url: str) -> Iterator[None]:
    """Raise the errors of httpx as SourceError."""
    try:
        yield
    except httpx.TooManyRedirects as err:
        raise SourceError(f"{url} leads in circles: {err}") from err
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as err:
        if "CERTIFICATE_VERIFY_FAILED" in str(err):
            raise SourceError(
                f"{url}: its certificate is not trusted; SSL_CERT_FILE may name the authority's, a PEM file: {err}"
            ) from err
        raise Unreachable(f"{url} can't be read ({type(err).__name__}: {err}); is the address right?") from err
