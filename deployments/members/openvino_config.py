"""The configuration of members that OpenVINO runs on this machine."""

from typing import Literal, Self

from pydantic import Field, model_validator

from deployments.contract.errors import ConfigurationError
from deployments.members.precision import Choice, Precision, choose
from deployments.members.versioned import VersionedMember
from deployments.repository.address import RepositoryAddress
from deployments.repository.errors import ModelError
from deployments.repository.repository import Model


class OpenVinoConfig(VersionedMember):
    """How OpenVINO runs a model."""

    precision: Precision | None = Field(
        None,
        description="variant of the version: the `fastest` on this CPU, `float` or `int8`; default: itself",
    )
    streams: int | None = Field(
        None, ge=1, le=1024, description="NUM_STREAMS; default: the fastest, measured at the first start"
    )
    least_at_once: int = Field(
        1, ge=1, le=8, description="fewest images in a part when a batch is split; more save CPU time"
    )
    inference_precision: Literal["f32", "bf16", "f16"] | None = Field(
        None, description="INFERENCE_PRECISION_HINT of layers that are not int8; default: OpenVINO's choice"
    )

    @model_validator(mode="after")
    def _chooses_once(self) -> Self:
        if self.precision is not None and self.version_policy == "latest":
            raise ValueError(
                "precision: with `version_policy: latest` the highest version is served; remove one of them"
            )
        return self

    def find(self, repository: RepositoryAddress) -> Model:
        """Find the configured version on disk, or its variant of the configured precision; see `LocalMember.find`."""
        chosen = self.choice(repository)
        return super().find(repository) if chosen is None else chosen.model

    def choice(self, repository: RepositoryAddress) -> Choice | None:
        """Choose the variant; None without a configured precision. Raises ConfigurationError as `find` does."""
        if self.precision is None:
            return None
        # Imported where it runs: OpenVINO takes time and memory that a process without a member need not spend.
        from deployments.members.openvino_autotune import cpu_ms

        found = super().find(repository)
        try:
            models, name = self.repository_and_name(repository)
            return choose(models.variants(name, found.variant_of), self.precision, cpu_ms)
        # OpenVINO raises the second for a model that it can't compile.
        except (ModelError, RuntimeError) as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err

    def pinned(self, version: int) -> Self:
        """See `LocalMember.pinned`; the version has been chosen."""
        return self.model_copy(update={"version": version, "precision": None})
