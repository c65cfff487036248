"""What every kind of remote member is configured by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from deployments.contract.errors import ConfigurationError
from deployments.contract.hosts import is_loopback
from deployments.contract.member import MemberConfig
from deployments.contract.preprocessing import Color, Interpolation, Resize

PORTS = {"http": 80, "https": 443, "grpc": 9000, "grpcs": 443}
Edge = Annotated[int, Field(ge=1, le=8192)]
Channel = Annotated[float, Field(allow_inf_nan=False)]
Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=256)]


class RemoteConfig(MemberConfig):
    """A member that another model server runs."""

    url: Annotated[str, Field(max_length=2048)] = Field(
        description="http://, https://, grpc:// or grpcs://, host and port; for HTTP, a path before /v1 or /v2, too"
    )
    model: Text | None = Field(None, description="what the server calls the model; default: the name")
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="model version, as the server has it; default: the server's choice",
    )
    input: Text | None = Field(None, description="the input tensor; default: the only one")
    output: Text | None = Field(None, description="the output tensor; default: the only one of floating point")
    scores: Literal["probabilities", "logits"] = Field("probabilities", description="what the output holds")
    labels: Path | tuple[str, ...] | None = Field(
        None, description="class names in order of index, or a file with one a line; compared with the others'"
    )
    as_sent: bool | None = Field(
        None, description="whether it gets images as they were sent; default: if its input is of bytes"
    )
    size: tuple[Edge, Edge] | None = Field(None, description="height and width of its pixels; default: the server's")
    layout: Literal["NHWC", "NCHW"] | None = Field(None, description="of its pixels; default: as its shape tells")
    color: Literal["BGR", "RGB"] = Field("BGR", description="order of the channels")
    mean: tuple[Channel, Channel, Channel] = Field(
        (0.0, 0.0, 0.0), description="subtracted from pixels from 0 to 255, by channel in `color`'s order"
    )
    scale: tuple[Deviation, Deviation, Deviation] = Field(
        (1.0, 1.0, 1.0), description="divided by after that, likewise"
    )
    crop_ratio: float | None = Field(
        None, gt=0, le=1, description="share that the centre crop keeps; default: the others'"
    )
    resize: Resize | None = Field(None, description="`crop`, `stretch` or `letterbox`; default: `crop`")
    interpolation: Interpolation | None = Field(None, description="default: `area`")
    border: Color | None = Field(None, description="colour beside a letterboxed image, blue, green, red")
    timeout_ms: int = Field(10_000, ge=1, le=600_000, description="the most that a call may take, ms")
    max_batch_size: int | None = Field(None, ge=1, le=4096, description="images in a call; default: a whole batch")
    retries: int = Field(2, ge=0, le=10, description="more tries of a call that found no server, or a busy one")
    break_after: int = Field(5, ge=1, le=1000, description="failures in a row that an address is left alone after")
    token_file: Path | None = Field(None, description="a file with a bearer token, read again when it changes")
    ca_file: Path | None = Field(None, description="certificates to trust, PEM; default: the system's")
    cert_file: Path | None = Field(None, description="our own certificate, PEM, for a server that asks for one")
    key_file: Path | None = Field(None, description="the key of `cert_file`, PEM")

    @model_validator(mode="after")
    def _fields_go_together(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"url: {self.url!r} is none of {', '.join(f'{name}://host:port' for name in PORTS)}")
        if parts.username or parts.query or parts.fragment or (self.is_grpc and parts.path.strip("/")):
            raise ValueError("url: only a host and a port, and for HTTP a path; a token goes into `token_file`")
        _ = parts.port
        if self.token_file is not None and not self.is_tls and not is_loopback(parts.hostname):
            raise ValueError("token_file: over a network a token needs https:// or grpcs://")
        if (self.ca_file or self.cert_file) and not self.is_tls:
            raise ValueError("ca_file, cert_file: they need https:// or grpcs://")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file: either needs the other")
        return self

    @property
    def is_grpc(self) -> bool:
        """Whether it is asked by gRPC."""
        return urlsplit(self.url).scheme in {"grpc", "grpcs"}

    @property
    def is_tls(self) -> bool:
        """Whether the way there is encrypted."""
        return urlsplit(self.url).scheme in {"https", "grpcs"}

    @property
    def host(self) -> str:
        """A name or an address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Where it listens."""
        parts = urlsplit(self.url)
        return parts.port or PORTS[parts.scheme]

    @property
    def path(self) -> str:
        """What comes before the protocol's own paths."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def model_name(self) -> str:
        """What the server calls the model."""
        return self.model or self.name

    def class_names(self) -> tuple[str, ...] | None:
        """The configured labels.

        Raises:
            ConfigurationError: the file can't be read.
        """
        if not isinstance(self.labels, Path):
            return self.labels
        try:
            return tuple(self.labels.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigurationError(f"members: {self.name!r}: labels: can't read {self.labels}: {err}") from err
