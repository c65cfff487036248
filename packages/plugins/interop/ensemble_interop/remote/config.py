"""The configuration of a member that another model server runs, whatever its protocol."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from deployments.contract.hosts import is_loopback
from deployments.contract.member import MemberConfig
from deployments.contract.preprocessing import Interpolation, Resize
from ensemble_interop.remote.client import ServerError
from ensemble_interop.remote.tensors import TensorName, TensorSettings
from ensemble_serving.url import address, parsed

Edge = Annotated[int, Field(ge=1, le=8192)]
Level = Annotated[int, Field(ge=0, le=255)]
# A whole number is the same as its text; 1.10 would be 1.1.
ServerVersion = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$"),
    BeforeValidator(lambda given: str(given) if type(given) is int else given),
]
OF_PIXELS = {"size", "crop_ratio", "resize", "interpolation", "border", "layout", "color", "mean", "scale", "datatype"}
MAX_TOKEN_LENGTH = 16 * 1024
LONGEST_MS = 600_000


class RemoteConfig(TensorSettings, MemberConfig):
    """Where the server of a member is, and how it is called; a protocol sets what makes a client of an endpoint."""

    over_grpc: ClassVar[type[Any]]
    over_http: ClassVar[type[Any]]
    url: Annotated[str, Field(max_length=2048)] = Field(
        description="http://, https://, grpc:// or grpcs://, host and port; for HTTP, a path before /v1 or /v2, too"
    )
    model: TensorName | None = Field(None, description="the model's name on the server; default: the member's name")
    version: ServerVersion | None = Field(
        None, description="the model's version on the server; default: the server's choice"
    )
    labels: Path | tuple[str, ...] | None = Field(
        None, description="class names in order of index, or a file with one per line; compared with the others'"
    )
    as_sent: bool | None = Field(
        None, description="whether the server gets images as clients sent them; default: true if its input is BYTES"
    )
    size: tuple[Edge, Edge] | None = Field(None, description="height and width of its pixels; default: the server's")
    crop_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the shorter side that the centre crop keeps; default: the other members'",
    )
    resize: Resize | None = Field(None, description="`crop`, `stretch` or `letterbox`; default: `crop`")
    interpolation: Interpolation | None = Field(
        None, description="interpolation when an image shrinks; default: `area`"
    )
    border: tuple[Level, Level, Level] | None = Field(
        None, description="colour beside a letterboxed image: blue, green, red"
    )
    timeout_ms: int = Field(10_000, ge=1, le=LONGEST_MS, description="longest time of a call, ms")
    max_batch_size: int | None = Field(None, ge=1, le=4096, description="images per call; default: a whole batch")
    retries: int = Field(2, ge=0, le=10, description="retries of a call that found no server, or a busy one")
    break_after: int = Field(
        5, ge=1, le=1000, description="failures in a row after which an address gets no calls until it answers a probe"
    )
    token_file: Path | None = Field(None, description="a file with a bearer token, read with each call")
    ca_file: Path | None = Field(None, description="certificates to trust, PEM; default: the system's")
    cert_file: Path | None = Field(
        None, description="this application's certificate, PEM, for a server that requires one"
    )
    key_file: Path | None = Field(None, description="the key of `cert_file`, PEM")

    @field_validator("url")
    @classmethod
    def _url_is_of_a_server(cls, url: str) -> str:
        parsed(url)
        return url

    @model_validator(mode="after")
    def _fields_go_together(self) -> Self:
        parts = parsed(self.url)
        if "@" in parts.netloc or parts.query or parts.fragment or (self.is_grpc and parts.path.strip("/")):
            raise ValueError("url: only a host and a port, and for HTTP a path; a token goes into `token_file`")
        is_tls = parts.scheme.endswith("s")
        if self.token_file is not None and not is_tls and not is_loopback(self.address[0]):
            raise ValueError("token_file: over a network a token needs https:// or grpcs://")
        if (self.ca_file or self.cert_file) and not is_tls:
            raise ValueError("ca_file, cert_file: they need https:// or grpcs://")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file: either needs the other")
        return self

    @model_validator(mode="after")
    def _pixels_are_sent(self) -> Self:
        """Refuse fields about pixels for a server that gets none, and a border that no resizing leaves."""
        written = (name for name in sorted(OF_PIXELS & self.model_fields_set) if getattr(self, name) is not None)
        if self.as_sent and (of_pixels := [*written]):
            raise ValueError(f"{of_pixels[0]}: with `as_sent: true` the server gets no pixels; remove one of them")
        if self.border is not None and self.resize != "letterbox":
            raise ValueError("border: only `resize: letterbox` leaves a border; remove it, or set that")
        return self

    @property
    def is_grpc(self) -> bool:
        """Return whether the server is called by gRPC."""
        return self.url.startswith("grpc")

    @property
    def address(self) -> tuple[str, int]:
        """The server's host and port."""
        return address(parsed(self.url))

    def authorization(self) -> dict[str, str]:
        """Return the HTTP header, or gRPC metadata, with the token; each call reads it, because the file may change.

        Raises:
            ServerError: the token can't be read.
        """
        if self.token_file is None:
            return {}
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
            if not token or len(token) > MAX_TOKEN_LENGTH or not token.isprintable():
                raise ValueError("the file does not hold a token on one line")
        except (OSError, ValueError) as err:
            # The error's text may quote the token.
            raise ServerError(f"can't read the token in {self.token_file} ({type(err).__name__})") from None
        return {"authorization": f"Bearer {token}"}
