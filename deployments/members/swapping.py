"""A member whose model is replaced by another version while it serves: loaded beside the old one, checked, swapped."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING

import msgspec
from pydantic import Field

from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.member import Agreed, told
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Preprocessing
from deployments.contract.settings import Schema
from deployments.members.predictor import Predictor
from models.errors import ModelError, Unreachable
from models.network import class_count, input_size, load
from models.repository import Model, Stamp
from models.sources import Where

if TYPE_CHECKING:
    from deployments.members.openvino import OpenVino

logger = logging.getLogger("ray.serve")


class VersionSettings(Schema):
    """What of a member changes while it serves."""

    version: int | None = Field(None, ge=1, description="model version; default: as the member's configuration says")


def check(model: Model, agreed: Agreed, current: Model | None) -> None:
    """Raise ConfigurationError or ModelError if a version can't take the place of the current one."""
    assert isinstance(agreed.images, Preprocessing)
    network = load(model)
    if (classes := class_count(network)) != len(agreed.labels):
        raise ConfigurationError(f"it has {classes} classes; the ensemble has {len(agreed.labels)}")
    if model.labels is not None and model.labels != agreed.labels:
        raise ConfigurationError("its labels are not the ensemble's")
    if input_size(network) not in {None, agreed.images.size}:
        raise ConfigurationError(f"it takes {input_size(network)}; the member gets {agreed.images.size}")
    try:
        if current is not None and told(model.input) != told(current.input):
            raise ConfigurationError("it wants its images cut, resized or filled in another way")
    except msgspec.ValidationError as err:
        raise ConfigurationError(f"its metadata: {err}") from err


def try_out(config: OpenVino, model: Model, agreed: Agreed, current: Model | None) -> None:
    """Raise ConfigurationError or ModelError if a version can't take the place of the current one, or does not run."""
    check(model, agreed, current)
    assert isinstance(agreed.images, Preprocessing)
    Predictor(config, model, agreed.images.size, 1).close()


class Serving:
    """A predictor, and the batches that it has under way; the last one of a retired predictor frees it."""

    def __init__(self, predictor: Predictor, model: Model) -> None:
        """Set the predictor and what it serves."""
        self.predictor, self.model = predictor, model
        self._under_way = 0
        self._retired = False

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """What the predictor answers."""
        self._under_way += 1
        try:
            return await self.predictor(batch)
        finally:
            self._under_way -= 1
            self._free()

    def retire(self) -> None:
        """No batch will come any more; called on the event loop."""
        self._retired = True
        self._free()

    def _free(self) -> None:
        if self._retired and self._under_way == 0:
            self.predictor.close()


class Swapping:
    """Serves one version of a model at a time, and swaps it between two batches.

    Attributes:
        refused: how many versions were not taken.
    """

    def __init__(self, config: OpenVino, repository: Where, agreed: Agreed, max_batch_size: int) -> None:
        """Load the configured version; by the policy `latest`, the highest one that can be served.

        Raises:
            ConfigurationError: there is none.
        """
        assert isinstance(agreed.images, Preprocessing)
        self.name = config.name
        self.refused = 0
        self._config, self._agreed, self._max_batch_size = config, agreed, max_batch_size
        self._where = repository
        self._repository, self._model_name = config.opened(repository)
        self._size = agreed.images.size
        self._settings = VersionSettings()
        self._changing = threading.Lock()
        self._refused: dict[int, Stamp] = {}
        self._seen: dict[int, Stamp] = {}
        self._serving = self._first()
        self._first_version = self._serving.model.version
        # Loaded, and on the event loop not yet swapped in.
        self._next: Serving | None = None
        if config.version_policy == "latest":
            _watch(self)

    def _first(self) -> Serving:
        if self._config.version_policy != "latest":
            # It was checked when the members agreed.
            return self._made(self._config.find(self._where))
        error: ConfigurationError | None = None
        for version in reversed(self._repository.versions(self._model_name)):
            try:
                return self._load(self._repository.find(self._model_name, version), None)
            except (ConfigurationError, ModelError) as err:
                self._refuse(version, err)
                error = error or ConfigurationError(f"members: {self.name!r}: {err}")
        raise error or ConfigurationError(f"members: {self.name!r}: no version of {self._model_name!r}")

    @property
    def look_every_s(self) -> float:
        """How often it looks for new versions."""
        return self._repository.look_every_s

    @property
    def version(self) -> int:
        """The version that answers the next batch."""
        return (self._next or self._serving).model.version

    @property
    def settings(self) -> VersionSettings:
        """Which version is wanted."""
        return self._settings

    @settings.setter
    def settings(self, settings: VersionSettings) -> None:
        self._settings = settings
        # It takes seconds, and this is the event loop.
        threading.Thread(target=self.notice, kwargs={"settled": True}, name="load", daemon=True).start()

    def check(self, settings: VersionSettings) -> None:
        """Raise ConfigurationError unless that version is there; whether it can be served is seen when it is loaded.

        What must be fetched is not: this is the event loop. A version that is not there is refused when it is fetched.
        """
        if settings.version is not None and not self._repository.places_whole:
            try:
                self._repository.find(self._model_name, settings.version)
            except ModelError as err:
                raise ConfigurationError(f"{self.name}: {err}") from err

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Pixels, uint8 [N,H,W,3] BGR, to probabilities, float32 [N,C], all of one version."""
        if self._next is not None:
            retired, self._serving, self._next = self._serving, self._next, None
            retired.retire()
        return await self._serving(batch)

    def check_health(self) -> None:
        """Raise RuntimeError if the predictor can't work any more."""
        self._serving.predictor.check_health()

    def notice(self, settled: bool = False) -> None:
        """Load the version that is wanted, unless it is served or was refused and has not changed since.

        Args:
            settled: whether a version that was not seen before is taken as complete.
        """
        try:
            self._notice(settled or self._repository.places_whole)
        except Unreachable as err:
            logger.warning("member %r can't look for new versions, what is served goes on: %s", self.name, err)
        except ModelError as err:
            logger.error("member %r can't look for new versions, what is served goes on: %s", self.name, err)

    def _notice(self, settled: bool) -> None:
        with self._changing:
            wanted = self._wanted()
            if wanted == self.version or self._is_refused(wanted):
                return
            stamp = self._stamp(wanted)
            is_complete = settled or self._seen.get(wanted) == stamp
            self._seen[wanted] = stamp
            if not is_complete:
                return
            try:
                current = (self._next or self._serving).model
                loaded = self._load(self._repository.find(self._model_name, wanted), current)
            except Unreachable:
                # It says nothing of the version, which is tried again.
                raise
            except (ConfigurationError, ModelError) as err:
                self._refused[wanted] = stamp
                self._refuse(wanted, err)
                return
            logger.info("member %r: version %d is loaded, after version %d", self.name, wanted, self.version)
            self._next = loaded

    def _wanted(self) -> int:
        """The version by the settings, else the highest by the policy, but none lower, else that of the start."""
        available = self._repository.versions(self._model_name)
        if self._settings.version is not None:
            return self._settings.version
        if self._config.version_policy == "latest":
            highest = max((version for version in available if not self._is_refused(version)), default=0)
            return max(highest, self.version)
        return self._first_version

    def _is_refused(self, version: int) -> bool:
        """Whether it was refused as it is now."""
        return version in self._refused and self._refused[version] == self._stamp(version)

    def _stamp(self, version: int) -> Stamp:
        return self._repository.stamp(self._model_name, version)

    def _load(self, model: Model, current: Model | None) -> Serving:
        """Load and warm up a version; raises ConfigurationError or ModelError if it can't take part."""
        check(model, self._agreed, current)
        return self._made(model)

    def _made(self, model: Model) -> Serving:
        return Serving(Predictor(self._config, model, self._size, self._max_batch_size), model)

    def _refuse(self, version: int, error: Exception) -> None:
        self.refused += 1
        logger.error("member %r: version %d is refused, what is served goes on: %s", self.name, version, error)


def _watch(member: Swapping) -> None:
    """Look for new versions from a thread, for as long as the member lives."""
    reference, every_s = weakref.ref(member), member.look_every_s

    def look() -> None:
        while True:
            time.sleep(every_s)
            if (alive := reference()) is None:
                return
            try:
                alive.notice()
            except Exception:
                logger.exception("member %r can't look for new versions", alive.name)
            del alive

    threading.Thread(target=look, name="versions", daemon=True).start()
