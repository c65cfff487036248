"""Members that OpenVINO runs on this machine, from the model repository; the kind of a member that doesn't say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
from pydantic import AfterValidator, Field, model_validator

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import Agreed, MemberConfig, Signature, told
from deployments.contract.nodes import Node
from deployments.contract.payload import Pixels, Probabilities
from models.errors import ModelError
from models.repository import Model, sha256
from models.sources import Repository, Where, opened
from models.sources.location import checked, model_at

# A name, or the address of a model's own folder.
ModelName = Annotated[str, AfterValidator(checked)]


class OpenVino(MemberConfig):
    """One model of the repository. A third member is one more entry."""

    kind: Literal["openvino"] = Field("openvino", description="OpenVINO on this machine")
    model: ModelName | None = Field(
        None, description="folder in the model repository, or the path or address of one elsewhere; default: the name"
    )
    version: int | None = Field(None, ge=1, description="model version; default: the highest")
    version_policy: Literal["fixed", "latest"] = Field(
        "fixed", description="`latest` takes a higher version that appears while it serves"
    )
    performance_hint: Literal["LATENCY", "THROUGHPUT"] = Field("THROUGHPUT", description="OpenVINO PERFORMANCE_HINT")
    threads: int | None = Field(None, ge=1, le=1024, description="INFERENCE_NUM_THREADS; default: the container's CPUs")
    streams: int | None = Field(None, ge=1, le=1024, description="NUM_STREAMS; default: OpenVINO's choice for the hint")
    least_at_once: int = Field(1, ge=1, le=8, description="images that a batch is not split below, to save CPU time")
    inference_precision: Literal["f32", "bf16", "f16"] | None = Field(
        None, description="INFERENCE_PRECISION_HINT of what is not int8; default: OpenVINO's choice for the CPU"
    )
    cpu_pinning: bool = Field(False, description="ENABLE_CPU_PINNING; on, two members on one machine share core 0")
    cache_dir: Path | None = Field(None, description="CACHE_DIR for compiled models; default: none")

    @model_validator(mode="after")
    def _one_version_or_the_latest(self) -> Self:
        if self.version is not None and self.version_policy == "latest":
            raise ValueError("version_policy: latest, but `version` names one; leave one of them out")
        return self

    def trial(self) -> Self | None:
        """See `MemberConfig.trial`; it stays with its version, whatever the policy."""
        if self.canary is not None and self.version_policy == "latest":
            raise ValueError(
                "canary: by `version_policy: latest` its version would be everybody's; name a `version` instead"
            )
        return super().trial()

    def signature(self, repository: Where) -> Signature:
        """What the model's files tell; see `MemberConfig.signature`."""
        from models.network import class_count, input_size, load

        model = self.find(repository)
        try:
            network = load(model)
            return Signature(
                classes=class_count(network),
                version=model.version,
                labels=model.labels,
                size=input_size(network),
                **told(model.input),
            )
        except (ModelError, msgspec.ValidationError) as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err

    def identity(self, repository: Where) -> str:
        """The model's files and the precision; see `MemberConfig.identity`."""
        model = self.find(repository)
        digests = {file.name: sha256(file) for file in sorted(model.folder.iterdir()) if file.is_file()}
        return f"{self.name} {model.name} {model.version} {self.inference_precision} {digests}"

    def make(self, repository: Where, agreed: Agreed, max_batch_size: int) -> Node[Pixels, Probabilities]:
        """A predictor whose version can be swapped; see `MemberConfig.make`."""
        # Imported where it runs: OpenVINO takes time and memory that a process without a member need not spend.
        from deployments.members.swapping import Swapping

        return Swapping(self, repository, agreed, max_batch_size)

    def find(self, repository: Where) -> Model:
        """The version on disk that is served.

        Raises:
            ConfigurationError: it isn't there.
        """
        try:
            models, name = self.opened(repository)
            return models.find(name, self.version)
        except ModelError as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err

    def opened(self, repository: Where) -> tuple[Repository, str]:
        """The repository that its model is in, and the model's name there."""
        where, name = model_at(self.model or self.name)
        return opened(where or repository), name
