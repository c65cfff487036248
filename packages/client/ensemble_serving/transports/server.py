"""A server, and how it is called."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import SplitResult

from ensemble_serving.transports.request import Headers
from ensemble_serving.url import address, parsed


@dataclass(frozen=True)
class Server:
    """A server, and how it is called; raises ValueError for another URL.

    Attributes:
        url: `http://host:port`, `https://...`, `grpc://host:port` or `grpcs://...`.
        connections: the most of them; further requests wait for one. Over HTTP by default 1,000, each with one request
            at a time; over gRPC 1, with any number of requests.
        timeout_s: of a request, seconds.
        headers: of every request, names in lower case.
        ca_file: certificates to trust, PEM; default: the system's.
        cert_file: this client's certificate, PEM.
        key_file: the key of `cert_file`, PEM.
        address: to connect to instead of the URL's host.
        most_bytes: of a response; default: any number.
    """

    url: str
    connections: int | None = None
    timeout_s: float = 60.0
    headers: Headers = ()
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    address: str | None = None
    most_bytes: int | None = None

    def __post_init__(self) -> None:
        """Read the URL."""
        self.parts  # noqa: B018

    @cached_property
    def parts(self) -> SplitResult:
        """The URL's parts."""
        return parsed(self.url)

    @property
    def authority(self) -> str:
        """Host and port as the URL has them: IPv6 in brackets, and no user's name."""
        return self.parts.netloc.rpartition("@")[2]

    @property
    def host(self) -> str:
        """The server's name or address, by which its certificate is verified."""
        return address(self.parts)[0]

    @property
    def ip(self) -> str:
        """The name or address to connect to."""
        return self.address or self.host

    @property
    def port(self) -> int:
        """The port to connect to."""
        return address(self.parts)[1]

    @property
    def is_grpc(self) -> bool:
        """Whether calls are gRPC's."""
        return self.parts.scheme.startswith("grpc")

    @property
    def is_tls(self) -> bool:
        """Whether calls are encrypted."""
        return self.parts.scheme.endswith("s")

    def tls(self) -> ssl.SSLContext:
        """Make the context of a client of HTTP/1.1; raises OSError if a file can't be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.set_alpn_protocols(["http/1.1"])
            if self.cert_file is not None:
                # Without a password, OpenSSL would ask the terminal for the password of an encrypted key, and wait.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except OSError as err:
            # Its message does not name the file.
            files = ", ".join(str(file) for file in (self.ca_file, self.cert_file, self.key_file) if file is not None)
            raise OSError(f"{files} can't be read as certificates, or the key is encrypted: {err}") from err
        return context

    def certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Read the authorities, the key and the certificate; raises OSError as `tls` does."""
        self.tls()
        key, certificate = (None if file is None else file.read_bytes() for file in (self.key_file, self.cert_file))
        return b"".join(file.read_bytes() for file in self._authorities()) or None, key, certificate

    def _authorities(self) -> list[Path]:
        """Find the files of the certificates to trust: grpcio would take its own instead of the system's."""
        if self.ca_file is not None:
            return [self.ca_file]
        system = ssl.get_default_verify_paths()
        if system.cafile is not None:
            return [Path(system.cafile)]
        return [] if system.capath is None else sorted(Path(system.capath).glob("*.[0-9]"))
