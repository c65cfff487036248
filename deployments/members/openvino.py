"""Members that OpenVINO runs on this machine; the kind of a member whose entry has no `kind`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from deployments.contract.member import MemberInterface, Signature, preprocessing_fields
from deployments.members.local import LoadedModel, LocalMember
from deployments.repository.repository import Model
from deployments.repository.sources import RepositoryAddress


class OpenVino(LocalMember):
    """One model of the repository that OpenVINO can read."""

    kind: Literal["openvino"] = Field("openvino", description="OpenVINO on this machine")
    performance_hint: Literal["LATENCY", "THROUGHPUT"] = Field("THROUGHPUT", description="OpenVINO PERFORMANCE_HINT")
    streams: int | None = Field(
        None, ge=1, le=1024, description="NUM_STREAMS; default: the fastest, measured at the first start"
    )
    least_at_once: int = Field(
        1, ge=1, le=8, description="fewest images in a part when a batch is split; more save CPU time"
    )
    inference_precision: Literal["f32", "bf16", "f16"] | None = Field(
        None, description="INFERENCE_PRECISION_HINT of what is not int8; default: OpenVINO's choice for the CPU"
    )
    cpu_pinning: bool = Field(False, description="ENABLE_CPU_PINNING; on, two members on one machine share core 0")
    cache_dir: Path | None = Field(None, description="CACHE_DIR for compiled models; default: none")

    def describe(self, model: Model) -> Signature:
        """See `LocalMember.describe`."""
        # Imported where it runs: OpenVINO takes time and memory that a process without a member need not spend.
        from deployments.repository.network import class_count, input_size, load

        network = load(model)
        return Signature(
            classes=class_count(network),
            version=model.version,
            labels=model.labels,
            size=input_size(network),
            **preprocessing_fields(model.input),
        )

    def identity(self, repository: RepositoryAddress) -> str:
        """Describe the model's files and the precision; see `MemberConfig.identity`."""
        return f"{self.name} {self.inference_precision} {self.file_digests(repository)}"

    def load(self, model: Model, interface: MemberInterface, max_batch_size: int) -> LoadedModel:
        """See `LocalMember.load`."""
        from deployments.members.predictor import Predictor

        return Predictor(self, model, interface.size, max_batch_size)
