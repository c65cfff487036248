"""Models on a website, which lists its files in `manifest.json`."""

import hashlib
import ssl
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, quote

import aiohttp
import msgspec

from deployments.repository.errors import SourceError
from deployments.repository.repository import VERSION
from ensemble_sources.file_system import FileSystem
from ensemble_sources.mirror import File, Listing

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 4 * 1024 * 1024


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A file.

    Attributes:
        size: in bytes.
        sha256: of the content, hexadecimal.
    """

    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """A repository's files.

    Attributes:
        format: of the manifest.
        models: by name, version and path below the version's folder.
    """

    models: dict[str, dict[str, dict[str, Entry]]]
    format: Literal[1] = 1


def read_manifest(content: bytes) -> Manifest:
    """Decode a manifest; raises SourceError if it is none."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as err:
        raise SourceError(f"{MANIFEST} is no manifest, make it with `ensemble manifest`: {err}") from err


LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
# `FileSystem.fetch` bounds the whole download.
TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10, sock_read=30)


class Website(FileSystem):
    """Reads a website by HTTPS; the certificates to trust are the system's, or the ones of `SSL_CERT_FILE`."""

    driver = "fsspec.implementations.http:HTTPFileSystem"
    refused = "a website must give models to everybody"
    has_manifest = True

    @classmethod
    def check(cls, address: SplitResult) -> None:
        """Raise SourceError for plain HTTP to another machine."""
        super().check(address)
        if address.scheme == "http" and address.hostname not in LOOPBACK:
            raise SourceError(f"{address.geturl()!r}: http:// is for this machine alone (127.0.0.1); use https://")

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of the client of HTTP, which counts the bytes as they are sent."""
        client = {
            "timeout": TIMEOUT,
            "trust_env": True,
            "headers": {"Accept-Encoding": "identity"},
            "auto_decompress": False,
            "middlewares": (self._check_redirect,),
        }
        return {"client_kwargs": client, "ssl": ssl.create_default_context(), "max_redirects": 5}

    def path(self, path: str) -> str:
        """Return the URL of a file."""
        return f"{self.location}/{quote(path)}"

    def list(self, name: str) -> Listing:
        """See `Mirror.list`; a manifest with another SHA-256 than the configured one is refused."""
        content = self.read(MANIFEST, MAX_MANIFEST_BYTES)
        pinned, digest = self.location.manifest, hashlib.sha256(content).hexdigest()
        if pinned is not None and digest != pinned:
            raise SourceError(
                f"{self.location}: {MANIFEST} has the SHA-256 {digest}, the configuration wants {pinned}; "
                "if you changed the repository, change the configuration, too"
            )
        listed = read_manifest(content).models.get(name, {})
        return {
            int(version): {path: File(each.size, each.sha256, each.sha256) for path, each in files.items()}
            for version, files in listed.items()
            if VERSION.fullmatch(version)
        }

    def typed(self, where: str, error: Exception) -> SourceError:
        """Convert an error of the client."""
        if isinstance(error, aiohttp.TooManyRedirects):
            return SourceError(f"{where} leads in circles")
        return super().typed(where, error)

    async def _check_redirect(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Refuse a redirect from HTTPS to plain HTTP, or from this machine to plain HTTP on another one."""
        is_ours = self.location.scheme == "http" and request.url.host in LOOPBACK
        if request.url.scheme != "https" and not is_ours:
            raise SourceError(f"{self.location} leads to {request.url.with_query(None)}, which is not https://")
        return await handler(request)
