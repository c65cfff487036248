"""The configuration of members that OpenVINO runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from deployments.members.versioned import VersionedMember


class OpenVinoConfig(VersionedMember):
    """How OpenVINO runs a model."""

    performance_hint: Literal["LATENCY", "THROUGHPUT"] = Field("THROUGHPUT", description="OpenVINO PERFORMANCE_HINT")
    streams: int | None = Field(
        None, ge=1, le=1024, description="NUM_STREAMS; default: the fastest, measured at the first start"
    )
    least_at_once: int = Field(
        1, ge=1, le=8, description="fewest images in a part when a batch is split; more save CPU time"
    )
    inference_precision: Literal["f32", "bf16", "f16"] | None = Field(
        None, description="INFERENCE_PRECISION_HINT of layers that are not int8; default: OpenVINO's choice"
    )
    cpu_pinning: bool = Field(False, description="ENABLE_CPU_PINNING; on, two members on one machine share core 0")
    cache_dir: Path | None = Field(None, description="CACHE_DIR for compiled models; default: none")
