"""The configuration of the ensemble: one schema, every field with a default, a unit and a bound.

`Settings` classes hold what changes through Serve's `user_config` while the application runs; the `...Config` classes
add what is decided once, at start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from graph.errors import ConfigurationError
from models.repository import DEFAULT_ROOT

Placement = Literal["separate", "inline"]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Edge = Annotated[int, Field(ge=1, le=8192)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LONGEST_NAME = 64
MIB = 1024 * 1024


class Schema(BaseModel):
    """Base of every configuration class: unknown fields are errors, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TransformerSettings(Schema):
    """Limits of the JPEG transformer, checked before a pixel is decoded."""

    max_image_bytes: int = Field(10 * MIB, ge=1024, le=256 * MIB, description="encoded size of an image, bytes")
    max_image_pixels: int = Field(50_000_000, ge=1024, le=1_000_000_000, description="declared size, pixels")


class TransformerConfig(TransformerSettings):
    """The JPEG transformer."""

    placement: Placement = "separate"
    size: tuple[Edge, Edge] | None = Field(None, description="height and width, pixels; default: what the members take")
    crop_ratio: float | None = Field(
        None, gt=0, le=1, description="share of the shorter side that the centre crop keeps; default: the models', or 1"
    )
    threads: int | None = Field(None, ge=1, le=256, description="decoding threads; default: the CPUs of the container")


class MemberConfig(Schema):
    """One model of the ensemble. A third member is one more entry."""

    name: str = Field(pattern=NAME, max_length=LONGEST_NAME, description="its name in every answer")
    model: str | None = Field(None, pattern=NAME, description="folder in the model repository; default: the name")
    version: int | None = Field(None, ge=1, description="model version; default: the highest")
    weight: Weight = Field(1.0, description="share in the combination, relative to the other members'")
    placement: Placement = "separate"
    deployment: str | None = Field(None, pattern=NAME, description="name of its Serve deployment; default: the name")
    performance_hint: Literal["LATENCY", "THROUGHPUT"] = Field("THROUGHPUT", description="OpenVINO PERFORMANCE_HINT")
    threads: int | None = Field(None, ge=1, le=1024, description="INFERENCE_NUM_THREADS; default: the container's CPUs")
    streams: int | None = Field(None, ge=1, le=1024, description="NUM_STREAMS; default: OpenVINO's choice for the hint")
    inference_precision: Literal["f32", "bf16", "f16"] | None = Field(
        None, description="INFERENCE_PRECISION_HINT of what is not int8; default: OpenVINO's choice for the CPU"
    )
    cpu_pinning: bool = Field(False, description="ENABLE_CPU_PINNING; on, two members on one machine share core 0")
    cache_dir: Path | None = Field(None, description="CACHE_DIR for compiled models; default: none")


class CombinerSettings(Schema):
    """How the members' probabilities become one."""

    method: Literal["mean", "geometric_mean", "majority_vote"] = "mean"
    weights: dict[str, Weight] = Field(default={}, description="by member name; default: the members' own weights")


class CombinerConfig(CombinerSettings):
    """The combiner."""

    placement: Placement = "separate"


class LabelerSettings(Schema):
    """What an answer lists."""

    top_k: int = Field(1, ge=1, le=100_000, description="classes listed for a request that doesn't say")


class LabelerConfig(LabelerSettings):
    """The labeler."""

    placement: Placement = "separate"


class IngressSettings(Schema):
    """Admission, batching at the door and deadlines."""

    max_batch_size: int = Field(16, ge=1, le=1024, description="images in one pass through the graph")
    max_batch_bytes: int = Field(2 * MIB, ge=1024, le=1024 * MIB, description="encoded images in one pass, bytes")
    batch_wait_ms: float = Field(0.0, ge=0, le=10_000, description="wait for a batch to fill while the graph is idle")
    max_concurrent_batches: int = Field(2, ge=1, le=1024, description="passes through the graph at a time")
    max_in_flight: int = Field(256, ge=1, le=100_000, description="admitted images; one more is refused with 503")
    max_in_flight_bytes: int = Field(256 * MIB, ge=1024, le=1024 * 1024 * MIB, description="theirs together, bytes")
    retry_after_s: int = Field(1, ge=1, le=3600, description="Retry-After of a refusal, seconds")
    timeout_ms: int = Field(30_000, ge=1, le=3_600_000, description="deadline of a request that doesn't say")
    max_parts: int = Field(64, ge=1, le=10_000, description="images in one request")
    max_request_bytes: int = Field(32 * MIB, ge=1024, le=1024 * MIB, description="body of one request, bytes")


class EnsembleConfig(Schema):
    """The arguments of `graph.app:build`."""

    model_repository: Path = Field(
        DEFAULT_ROOT, description="folder of <name>/<version>/; default: the models in the box"
    )
    transformer: TransformerConfig = TransformerConfig()
    members: tuple[MemberConfig, ...] = Field(min_length=1, max_length=64)
    combiner: CombinerConfig = CombinerConfig()
    labeler: LabelerConfig = LabelerConfig()
    ingress: IngressSettings = IngressSettings()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [member.name for member in self.members]
        deployments = [deployment_name(member) for member in self.members]
        for kind, values in (("name", [*names, *RESERVED]), ("deployment", [*deployments, *RESERVED])):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"members: the {kind} {twice[0]!r} is used twice")
        check_weights(self.combiner.weights or {member.name: member.weight for member in self.members}, names)
        return self


RESERVED = ("Ingress", "JpegTransformer", "Combiner", "Labeler")


def deployment_name(member: MemberConfig) -> str:
    """The name of a member's Serve deployment."""
    return member.deployment or member.name


def check_weights(weights: dict[str, float], names: list[str]) -> None:
    """Raise ValueError unless every weight belongs to a member and at least one member has a positive weight."""
    if unknown := sorted(set(weights) - set(names)):
        raise ValueError(f"combiner.weights: no member {unknown[0]!r}; the members are {names}")
    if not any(weights.get(name, 0.0) > 0 for name in names):
        raise ValueError("combiner.weights: at least one member needs a weight above 0")


def parse(args: dict[str, Any]) -> EnsembleConfig:
    """Validate the arguments of the application.

    Raises:
        ConfigurationError: names each field at fault, what it got and what is allowed.
    """
    try:
        return EnsembleConfig.model_validate(args)
    except ValidationError as err:
        raise ConfigurationError(describe(err)) from err


def describe(error: ValidationError) -> str:
    """A line for each field at fault: its path, what is wrong, what it got."""
    lines = []
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"]) or "configuration"
        given = "" if detail["type"] in {"missing", "value_error"} else f" (got {detail['input']!r})"
        lines.append(f"{path}: {detail['msg'].removeprefix('Value error, ')}{given}")
    return "; ".join(lines)
