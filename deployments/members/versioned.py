"""A local member whose model version is replaced while it serves: the new one is loaded first, then swapped in."""

import logging
import threading
import time
import weakref
from dataclasses import dataclass

from pydantic import Field

from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.member import PREPROCESSING_FIELDS, MemberInterface, Signature
from deployments.contract.nodes import Node
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import MemberInput, Preprocessing
from deployments.contract.settings import Schema
from deployments.members.local import LoadedModel, LocalMember
from deployments.repository.address import RepositoryAddress
from deployments.repository.errors import ModelError, Unreachable
from deployments.repository.repository import METADATA, Model, Stamp

logger = logging.getLogger("ray.serve")


class VersionSettings(Schema):
    """The settings of a local member that change while it serves."""

    version: int | None = Field(None, ge=1, description="model version; default: that of the member's configuration")


def check(config: LocalMember, model: Model, interface: MemberInterface) -> None:
    """Raise ConfigurationError or ModelError if a version can't be served, by what its files describe."""
    signature = config.describe(model)
    if signature.classes not in {None, len(interface.labels)}:
        raise ConfigurationError(f"it has {signature.classes} classes; the ensemble has {len(interface.labels)}")
    if signature.labels is not None and set(signature.labels) != set(interface.labels):
        raise ConfigurationError("its labels are not the ensemble's")
    if signature.size not in {None, interface.size}:
        raise ConfigurationError(f"it takes {signature.size}; the member gets {interface.size}")
    if _input_of(signature, interface.images, interface.sets_crop).key != interface.images.key:
        raise ConfigurationError("its images are cropped, resized or filled differently")


def _input_of(signature: Signature, agreed: MemberInput, sets_crop: bool) -> MemberInput:
    """Return the input of a version; the agreed crop applies if the version has none, or the configuration sets it."""
    assert isinstance(agreed, Preprocessing)
    fields = {name: getattr(signature, name) for name in PREPROCESSING_FIELDS}
    if sets_crop or signature.crop_ratio is None:
        fields["crop_ratio"] = agreed.crop_ratio
    return Preprocessing(agreed.size, **{name: value for name, value in fields.items() if value is not None})


@dataclass
class Version:
    """A version in memory, the version on disk that it was loaded from, and the number of its batches in flight."""

    loaded: LoadedModel
    model: Model
    in_flight: int = 0


class VersionedModel:
    """Serves one version of a model at a time, and replaces it between two batches.

    Attributes:
        refused: how many versions could not be served.
    """

    def __init__(
        self, config: LocalMember, repository: RepositoryAddress, interface: MemberInterface, max_batch_size: int
    ) -> None:
        """Load the configured version; with the policy `latest`, the highest one that can be served.

        Raises:
            ConfigurationError: there is none.
        """
        self.name = config.name
        self.refused = 0
        self._config, self._interface, self._max_batch_size = config, interface, max_batch_size
        self._repository, self._model_name = config.repository_and_name(repository)
        self._settings = VersionSettings()
        self._changing = threading.Lock()
        self._refused: dict[int, Stamp] = {}
        self._seen: dict[int, Stamp] = {}
        self._serving = self._load_first(repository)
        self._first_version = self._serving.model.version
        # Loaded, and swapped in by the next batch, on the event loop.
        self._next: Version | None = None
        # Whatever the policy, a version that is wanted may be refused until it is mended, or out of reach for a while.
        _poll(self, self._repository.poll_interval_s)

    def _load_first(self, repository: RepositoryAddress) -> Version:
        if self._config.version_policy != "latest":
            model = self._config.find(repository)
            try:
                # Its files may be others than when the members' signatures were compared.
                check(self._config, model, self._interface)
            except (ConfigurationError, ModelError) as err:
                raise ConfigurationError(f"members: {self.name!r}: version {model.version}: {err}") from err
            return self._load(model)
        error: ConfigurationError | None = None
        for version in reversed(self._available()):
            try:
                return self._load_checked(self._repository.find(self._model_name, version))
            except (ConfigurationError, ModelError) as err:
                self._refuse(version, err)
                error = error or ConfigurationError(f"members: {self.name!r}: {err}")
        raise error or ConfigurationError(f"members: {self.name!r}: no version of {self._model_name!r}")

    @property
    def version(self) -> int:
        """The version that answers the next batch."""
        return (self._next or self._serving).model.version

    @property
    def settings(self) -> VersionSettings:
        """The settings, which may name a version."""
        return self._settings

    @settings.setter
    def settings(self, settings: VersionSettings) -> None:
        self._settings = settings
        # Loading takes seconds, and this is the event loop.
        threading.Thread(target=self.update, kwargs={"settled": True}, name="load", daemon=True).start()

    def check(self, settings: VersionSettings) -> None:
        """Raise ConfigurationError unless the version is there; whether it can be served is found when it is loaded.

        A version that must be fetched is not looked for, because this is the event loop: it is refused when fetching
        fails.
        """
        if settings.version is not None and not self._repository.is_atomic:
            try:
                self._repository.find(self._model_name, settings.version)
            except ModelError as err:
                raise ConfigurationError(f"{self.name}: {err}") from err

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Predict: pixels, uint8 [N,H,W,3] BGR, to probabilities, float32 [N,C], all of one version."""
        if self._next is not None:
            replaced, self._serving, self._next = self._serving, self._next, None
            if not replaced.in_flight:
                replaced.loaded.close()
        version = self._serving
        version.in_flight += 1
        try:
            return await version.loaded(batch)
        finally:
            version.in_flight -= 1
            if version is not self._serving and not version.in_flight:
                version.loaded.close()

    def check_health(self) -> None:
        """Raise RuntimeError if the version can't work any more."""
        self._serving.loaded.health.check()

    def update(self, settled: bool = False) -> None:
        """Load the version that is wanted, unless it is served, or was refused and has not changed since.

        Args:
            settled: whether a version that is seen for the first time is taken as complete.
        """
        try:
            self._update(settled or self._repository.is_atomic)
        except ModelError as err:
            level = logging.WARNING if isinstance(err, Unreachable) else logging.ERROR
            logger.log(
                level, "member %r can't look for new versions, the current one stays in service: %s", self.name, err
            )

    def _update(self, settled: bool) -> None:
        with self._changing:
            wanted = self._wanted_version()
            if (wanted == self.version and self._repository.is_atomic) or self._is_refused(wanted):
                return
            stamp = self._stamp(wanted)
            if wanted == self.version:
                self._report_change(stamp)
                return
            is_complete = settled or self._seen.get(wanted) == stamp
            self._seen[wanted] = stamp
            if not is_complete:
                return
            try:
                model = self._repository.find(self._model_name, wanted)
                if self._settings.version is None and self._serving.model.metadata and not model.metadata:
                    raise ModelError(f"it has no {METADATA}, which version {self.version} has")
                loaded = self._load_checked(model)
            except Unreachable:
                # That is not the version's fault: it is tried again.
                raise
            except (ConfigurationError, ModelError) as err:
                self._refused[wanted] = stamp
                self._refuse(wanted, err)
                return
            logger.info("member %r: version %d is loaded, after version %d", self.name, wanted, self.version)
            self._next = loaded

    def _report_change(self, stamp: Stamp) -> None:
        """Log that files of the version in service have changed."""
        if self._seen.setdefault(self.version, stamp) != stamp:
            changed = "member %r: files of version %d changed, and it answers as it was loaded; make them a new version"
            logger.error(changed, self.name, self.version)
            self._seen[self.version] = stamp

    def _wanted_version(self) -> int:
        """Return the version to serve: the settings' one, or by the policy the highest one, or the first one."""
        if self._settings.version is not None:
            return self._settings.version
        if self._config.version_policy == "latest":
            return max([self.version, *(version for version in self._available() if not self._is_refused(version))])
        return self._first_version

    def _available(self) -> list[int]:
        """List the versions that the policy `latest` may serve, ascending."""
        rolled_back = self._repository.rolled_back(self._model_name)
        return [version for version in self._repository.versions(self._model_name) if version not in rolled_back]

    def _is_refused(self, version: int) -> bool:
        """Return whether a version was refused, and its files have not changed since."""
        return version in self._refused and self._refused[version] == self._stamp(version)

    def _stamp(self, version: int) -> Stamp:
        return self._repository.stamp(self._model_name, version)

    def _load_checked(self, model: Model) -> Version:
        """Check and load a version; raises ConfigurationError or ModelError if it can't be served."""
        check(self._config, model, self._interface)
        return self._load(model)

    def _load(self, model: Model) -> Version:
        return Version(self._config.load(model, self._interface, self._max_batch_size), model)

    def _refuse(self, version: int, error: Exception) -> None:
        self.refused += 1
        logger.error(
            "member %r: version %d is refused, the current one stays in service: %s", self.name, version, error
        )


def _poll(member: VersionedModel, interval_s: float) -> None:
    """Look for new versions from a thread, for as long as the member exists."""
    reference = weakref.ref(member)

    def poll() -> None:
        while True:
            time.sleep(interval_s)
            if (alive := reference()) is None:
                return
            try:
                alive.update()
            except Exception:
                logger.exception("member %r can't look for new versions", alive.name)
            del alive

    threading.Thread(target=poll, name="versions", daemon=True).start()


class VersionedMember(LocalMember):
    """One model of a repository. A kind is a subclass that describes and loads a version of it."""

    def make(
        self, repository: RepositoryAddress, agreed: MemberInterface, max_batch_size: int
    ) -> Node[Pixels, Probabilities]:
        """Make a node whose version can be replaced while it serves; see `MemberConfig.make`."""
        return VersionedModel(self, repository, agreed, max_batch_size)
