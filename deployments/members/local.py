"""The members whose models are in a model repository and run on this machine, whatever library runs them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, Protocol, Self

from pydantic import AfterValidator, Field, model_validator

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberConfig, MemberInterface, Signature
from deployments.contract.nodes import Node
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.settings import Cpus
from deployments.repository.address import RepositoryAddress, check_model, open_repository, split_model
from deployments.repository.errors import ModelError
from deployments.repository.repository import Model, Repository, digests

# Inferences that fail in a row, and a time that none takes, after which a member is unhealthy.
UNHEALTHY_AFTER = 3
HUNG_AFTER_S = 30.0


class Health:
    """The health of a loaded model, by the inferences that failed in a row, and the inferences that have not ended.

    Attributes:
        began: when each that has not ended began, seconds of a monotonic clock.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.failures = 0
        self.began: dict[object, float] = {}

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Count an inference, which takes as long as the block, and its outcome."""
        inference = object()
        self.began[inference] = time.monotonic()
        try:
            yield
        except Exception:
            self.failures += 1
            raise
        else:
            self.failures = 0
        finally:
            del self.began[inference]

    def check(self) -> None:
        """Raise RuntimeError once several inferences in a row have failed, or one hangs; runs none itself."""
        if self.failures >= UNHEALTHY_AFTER:
            raise RuntimeError(f"member {self._name!r} failed {self.failures} times in a row")
        began = list(self.began.values())
        if began and time.monotonic() - min(began) > HUNG_AFTER_S:
            raise RuntimeError(f"an inference of member {self._name!r} has not ended for {HUNG_AFTER_S:.0f} s")


class LoadedModel(Node[Pixels, Probabilities], Protocol):
    """One version of a model in memory: pixels, uint8 [N,H,W,3] BGR, to probabilities, float32 [N,C]."""

    health: Health

    def close(self) -> None:
        """Free its memory; called on the event loop once no batch is in flight.

        OpenVINO aborts the process if one of its own threads, which call back, drops the last reference to a model.
        """
        ...


class LocalMember(MemberConfig):
    """One model of a repository; see `VersionedMember`, of which kinds are subclasses."""

    matches_by_name = True

    # A name, or the address of a model's own folder.
    model: Annotated[str, AfterValidator(check_model)] | None = Field(
        None, description="folder in the model repository, or the path or address of one elsewhere; default: the name"
    )
    version: int | None = Field(None, ge=1, description="model version; default: the highest")
    cpus: Cpus | None = Field(
        None, description="CPUs that only its replica uses, by number, or `auto` for its share; default: all"
    )
    version_policy: Literal["fixed", "latest"] = Field(
        "fixed", description="`latest` takes a higher version that appears while it serves"
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="threads that compute; default: the member's share of the cores"
    )

    @model_validator(mode="after")
    def _one_version_or_the_latest(self) -> Self:
        if self.version is not None and self.version_policy == "latest":
            raise ValueError("version_policy: latest, but `version` names one; remove one of them")
        return self

    @model_validator(mode="after")
    def _has_a_process_to_pin(self) -> Self:
        if self.cpus is not None and self.placement == "inline":
            raise ValueError(
                "cpus: an inline member has no process of its own; set `cpus` beside `members`, or place it separate"
            )
        return self

    def signature(self, repository: RepositoryAddress) -> Signature:
        """Read the signature from the model's files; see `MemberConfig.signature`."""
        model = self.find(repository)
        try:
            return self.describe(model)
        except ModelError as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err

    def pinned(self, version: int) -> Self:
        """Return the member with a version, so that a replica that starts later serves the same."""
        return self.model_copy(update={"version": version})

    def describe(self, model: Model) -> Signature:
        """Read the signature of a version; raises ModelError if the version can't be a member."""
        raise NotImplementedError

    def load(self, model: Model, interface: MemberInterface, max_batch_size: int) -> LoadedModel:
        """Load a version, and run it on batches of the sizes that it may get, at most `max_batch_size` images.

        Raises:
            ConfigurationError: it can't be a member, or does not run on pixels of the interface's size.
        """
        raise NotImplementedError

    def find(self, repository: RepositoryAddress) -> Model:
        """Find the configured version on disk; raises ConfigurationError if it is not there."""
        try:
            models, name = self.repository_and_name(repository)
            return models.find(name, self.version)
        except ModelError as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err

    def repository_and_name(self, repository: RepositoryAddress) -> tuple[Repository, str]:
        """Return the repository that has the model, and the model's name there."""
        address, name = split_model(self.model or self.name)
        return open_repository(address or repository), name

    def file_digests(self, repository: RepositoryAddress) -> str:
        """Return the name, the version and the SHA-256 of each file of the configured version, as text."""
        model = self.find(repository)
        return f"{model.name} {model.version} {digests(model.folder)}"
