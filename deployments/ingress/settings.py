"""The ingress' settings."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from deployments.contract.caller import FairBy
from deployments.contract.sections import Extensible
from deployments.contract.settings import MIB

Host = Annotated[str, Field(pattern=r"^(\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)$", max_length=253)]


def _as_sent(origin: str) -> str:
    """Return an origin as browsers send it: in small letters, and without its scheme's own port."""
    scheme, _, host = origin.lower().partition("://")
    return f"{scheme}://{host.removesuffix({'http': ':80', 'https': ':443'}[scheme])}" if host else origin


# https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Origin
Origin = Annotated[
    str,
    Field(pattern=r"^(\*|https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)$", max_length=300),
    AfterValidator(_as_sent),
]
# Commas and opening brackets of a JSON document whose images are base64: three for each image, and more for parameters.
MOST_ELEMENTS = 32_768


class IngressSettings(Extensible):
    """Admission, batching and deadlines."""

    at: ClassVar[str] = "ingress"

    max_batch_size: int = Field(16, ge=1, le=1024, description="images in one batch")
    max_batch_bytes: int = Field(
        2 * MIB, ge=1024, le=1024 * MIB, description="encoded size of the images in one batch, bytes"
    )
    batch_wait_ms: float = Field(0.0, ge=0, le=10_000, description="wait for a batch to fill while the graph is idle")
    refill_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="longest wait for the clients of the last batch to send again, as a share of its time",
    )
    max_concurrent_batches: int = Field(2, ge=1, le=1024, description="batches in the graph at a time")
    max_in_flight: int = Field(
        256, ge=1, le=100_000, description="images admitted and not answered; one more is refused"
    )
    max_in_flight_bytes: int = Field(
        256 * MIB, ge=1024, le=1024 * 1024 * MIB, description="size of admitted images and of arriving bodies, bytes"
    )
    max_in_flight_pixels: int = Field(
        200_000_000,
        ge=1,
        le=100_000_000_000,
        description="pixels declared by admitted images that are decoded in processes of their own",
    )
    max_arriving: int = Field(
        512, ge=1, le=100_000, description="requests whose bodies are arriving; at the limit the oldest is refused"
    )
    min_body_rate: int = Field(1024, ge=1, le=MIB, description="lowest rate of a body after 5 s, bytes per second")
    overload_status: Literal[503, 429] = Field(
        503,
        description="HTTP status of a refusal at these limits; some load balancers exclude a server after several 503s",
    )
    retry_after_s: int = Field(1, ge=1, le=3600, description="shortest Retry-After of a refusal, seconds")
    fair_by: FairBy = Field(
        "key", description="who shares the in-flight limit when most of it is used: API keys, addresses or nobody"
    )
    timeout_ms: int = Field(30_000, ge=1, le=3_600_000, description="deadline of a request that sets none")
    max_parts: int = Field(64, ge=1, le=10_000, description="images in one request, at most `max_in_flight`")
    max_elements: int = Field(
        MOST_ELEMENTS,
        ge=1024,
        le=16 * MIB,
        description="commas and opening brackets in the JSON of a request, or fields in a message over gRPC. An "
        "image of 224x224 as nested lists has 200,931. The ingress does nothing else while it reads the JSON",
    )
    hosts: tuple[Host, ...] | None = Field(
        None,
        description="host names that clients may use besides addresses and localhost; `.example.com` for all below it, "
        "`*` for any; default: any if the server listens beyond loopback, else none. Web pages of named hosts may send "
        "requests that change something",
    )
    origins: tuple[Origin, ...] = Field(
        (),
        description="origins such as `https://app.example` whose web pages may send requests and read the answers; "
        "`*` for any",
    )
    max_request_bytes: int = Field(32 * MIB, ge=1024, le=1024 * MIB, description="body of one request, bytes")

    @model_validator(mode="after")
    def _any_request_may_be_in_flight(self) -> Self:
        # A larger body would be told to come again, and would never be admitted.
        if self.max_request_bytes > self.max_in_flight_bytes:
            raise ValueError(
                f"max_request_bytes is {self.max_request_bytes}, more than the {self.max_in_flight_bytes} of "
                "max_in_flight_bytes; lower it, or raise the other"
            )
        return self

    @model_validator(mode="after")
    def _a_lone_image_leaves_in_time(self) -> Self:
        if self.batch_wait_ms >= self.timeout_ms:
            raise ValueError(
                f"batch_wait_ms is {self.batch_wait_ms:g}, and the time of a lone image is over before, by the "
                f"{self.timeout_ms} of timeout_ms; lower it: some milliseconds are usual"
            )
        return self
