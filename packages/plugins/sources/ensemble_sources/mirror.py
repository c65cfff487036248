"""A repository whose files are copied into the user's cache folder: they are verified, then placed all at once."""

import builtins
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from deployments.repository.address import Location, Source
from deployments.repository.errors import SourceError, Unreachable
from deployments.repository.repository import METADATA, Model, Stamp, read, sha256, user_cache, versions

logger = logging.getLogger("ray.serve")

LISTED_FOR_S = 5.0
MAX_METADATA_BYTES = 4 * 1024 * 1024
# The largest version.
MAX_FILES = 256
MAX_BYTES = 8 * 1024**3
# The end of the name of a folder that a version is fetched into; a dot and the digest stand before it.
STAGED = ".partial"
# Versions that are kept of a model at an address.
MAX_KEPT = 8


class File(NamedTuple):
    """A file at a source.

    Attributes:
        size: in bytes.
        tag: changes with the content.
        sha256: of the content, hexadecimal, if the source has it.
    """

    size: int
    tag: str
    sha256: str | None = None


# The files of each version of a model, by their path below the version's folder.
Listing = dict[int, dict[str, File]]


class Mirror(Source):
    """A source whose files are copied to this machine; a subclass lists and fetches them.

    `content/<SHA-256 of metadata.json>/` holds the files of a version, so the same content is fetched once.
    `placed/<address>/<name>/<version>` is a link to it: it is served if the source does not answer. Of a model, the
    last few versions that were looked for are kept.
    """

    poll_interval_s = 30.0
    is_atomic = True

    def __init__(self, location: Location) -> None:
        """Set the address; raises SourceError if no cache can be kept."""
        super().__init__(location)
        # The digest of the manifest belongs to the address: with another one, it is another source.
        address = hashlib.sha256(f"{location}#{location.manifest}".encode()).hexdigest()
        with _errors_of_cache():
            cache = user_cache("models")
        self._content, self._all_placed = cache / "content", cache / "placed"
        self._placed = self._all_placed / address[:32]
        # By model, when it was listed, and the listing or the text of the error, as an exception would keep its frames.
        self._listed: dict[str, tuple[float, Listing | str]] = {}
        self._listing_lock = threading.Lock()

    @abstractmethod
    def list(self, name: str) -> Listing:
        """List the files of a model.

        Raises:
            Unreachable: the source does not answer.
            SourceError: the source refuses, or its answer is invalid.
        """

    @abstractmethod
    def fetch(self, path: str, target: Path, most: int) -> None:
        """Copy a file, by its path below the repository, to a path on this machine.

        Raises:
            SourceError: the file has more than `most` bytes, or as `list` does.
        """

    def read(self, path: str, most: int) -> bytes:
        """Return the content of a small file; raises as `fetch` does."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "content"
            self.fetch(path, target, most)
            return target.read_bytes()

    def versions(self, name: str) -> builtins.list[int]:
        """List the complete versions; if the source does not answer, the versions that were fetched before."""
        try:
            return sorted(self._list(name))
        except Unreachable as err:
            kept = versions(self._placed, name)
            if not kept:
                raise
            logger.warning("%s; versions of %r that were fetched before: %s", err, name, kept)
            return kept

    def stamp(self, name: str, version: int) -> Stamp:
        """Return the stamp of a version's files in the last listing."""
        _, listing = self._listed.get(name, (0.0, {}))
        files = [] if isinstance(listing, str) else sorted(listing.get(version, {}).items())
        return tuple((path, file.size, file.tag) for path, file in files)

    def find(self, name: str, version: int | None = None) -> Model:
        """Fetch a version unless it is here; if the source does not answer, find one that was fetched before.

        Raises:
            Unreachable: the source does not answer, and the version was not fetched before.
            SourceError: the source has no such version, or its files do not match `metadata.json`.
        """
        try:
            return self._fetched(name, version)
        except Unreachable as err:
            kept = versions(self._placed, name)
            chosen = max(kept, default=0) if version is None else version
            if chosen not in kept:
                raise
            logger.warning("%s; version %d of %r was fetched before and is served", err, chosen, name)
            return read(name, chosen, (self._placed / name / str(chosen)).resolve())

    def _list(self, name: str) -> Listing:
        with self._listing_lock:
            at, listing = self._listed.get(name, (float("-inf"), {}))
            if time.monotonic() - at > LISTED_FOR_S:
                try:
                    found = self.list(name)
                    # A version without metadata is incomplete, or was not written by us.
                    listing = {version: files for version, files in found.items() if METADATA in files}
                except Unreachable as err:
                    listing = str(err)
                self._listed[name] = time.monotonic(), listing
            if isinstance(listing, str):
                raise Unreachable(listing)
            return listing

    def _fetched(self, name: str, version: int | None) -> Model:
        listing = self._list(name)
        if not listing:
            raise SourceError(f"no model {name!r} at {self.location}, or no version of it has a {METADATA}")
        chosen = max(listing) if version is None else version
        if chosen not in listing:
            raise SourceError(f"model {name!r} has no version {chosen} at {self.location}; it has {sorted(listing)}")
        where, files = f"{name}/{chosen}", listing[chosen]
        with _errors_of_cache():
            metadata = self._metadata(where, files[METADATA])
            folder = self._content / hashlib.sha256(metadata).hexdigest()
            digests = _digests(f"{self.location}/{where}", metadata, files)
            _remove_abandoned(self._content)
            with _locked(folder):
                # The folder's name is the digest of the file that names the others.
                damaged = _first_damaged(folder, {METADATA: folder.name, **digests})
                if damaged is not None:
                    if folder.is_dir():
                        logger.warning("%s is damaged and is fetched again", folder / damaged)
                    self._fetch(where, files, digests, metadata, folder)
                _link(self._placed / where, folder)
        self._evict(name)
        return read(name, chosen, folder)

    def _evict(self, name: str) -> None:
        """Remove all but the last few versions of a model that were looked for."""
        with suppress(OSError):
            links = sorted((self._placed / name).glob("[0-9]*"), key=lambda link: link.lstat().st_mtime_ns)
            for link in links[:-MAX_KEPT]:
                folder = link.resolve()
                link.unlink(missing_ok=True)
                with _locked(folder):
                    # Another process may place the same content for another address or version at this moment.
                    if not any(other.resolve() == folder for other in self._all_placed.glob("*/*/[0-9]*")):
                        shutil.rmtree(folder)

    def _metadata(self, where: str, file: File) -> bytes:
        path = f"{where}/{METADATA}"
        if file.size > MAX_METADATA_BYTES:
            raise SourceError(f"{self.location}/{path} has {file.size} bytes; {MAX_METADATA_BYTES} may be")
        content = self.read(path, file.size)
        self._check_size(path, len(content), file.size)
        if file.sha256 not in {None, hashlib.sha256(content).hexdigest()}:
            raise SourceError(f"{self.location}/{path} does not match the manifest; write that again")
        return content

    def _fetch(
        self, where: str, files: Mapping[str, File], digests: Mapping[str, str], metadata: bytes, folder: Path
    ) -> None:
        """Fetch the files of a version, verify them, and put them into a folder, all or none."""
        staged = folder.with_name(f".{folder.name}{STAGED}")
        # A process that was killed may have left it.
        shutil.rmtree(staged, ignore_errors=True)
        try:
            for path in digests:
                target = staged / path
                target.parent.mkdir(parents=True, exist_ok=True)
                self.fetch(f"{where}/{path}", target, files[path].size)
                self._check_size(f"{where}/{path}", target.stat().st_size, files[path].size)
            (staged / METADATA).write_bytes(metadata)
            damaged = _first_damaged(staged, digests)
            if damaged is not None:
                raise SourceError(
                    f"{self.location}/{where}/{damaged} does not match the SHA-256 in {METADATA}; upload the version "
                    f"again, {METADATA} last"
                )
            if folder.exists():
                # It is damaged.
                shutil.rmtree(folder)
            staged.rename(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _check_size(self, path: str, size: int, listed: int) -> None:
        if size < listed:
            raise Unreachable(
                f"{self.location}/{path} ended {listed - size} bytes early; it is fetched again when it is needed"
            )
        if size > listed:
            raise SourceError(f"{self.location}/{path} is longer than the {listed} bytes that are listed")


def _digests(where: str, metadata: bytes, files: Mapping[str, File]) -> dict[str, str]:
    """Read the SHA-256 of each file in `metadata.json`; raises SourceError unless each file can be fetched."""
    try:
        decoded: dict[str, Any] = msgspec.json.decode(metadata, type=dict[str, Any])
        digests = msgspec.convert(decoded.get("sha256", {}), dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as err:
        raise SourceError(f"{where}/{METADATA} is no object with the SHA-256 of each file: {err}") from err
    if not 0 < len(digests) <= MAX_FILES:
        raise SourceError(f"{where}/{METADATA} has the SHA-256 of {len(digests)} files; a version has 1 to {MAX_FILES}")
    for path, digest in digests.items():
        if path == METADATA or not _is_below(path):
            raise SourceError(f"{where}/{METADATA} names {path!r}, which is no file beside it")
        if path not in files:
            raise SourceError(f"{where}/{path} is missing; upload the version again, {METADATA} last")
        if files[path].sha256 not in {None, digest}:
            raise SourceError(f"{where}/{path} has another SHA-256 in the manifest than in {METADATA}; write it anew")
    if (size := sum(files[path].size for path in digests)) > MAX_BYTES:
        raise SourceError(f"{where} has {size} bytes; a version has at most {MAX_BYTES}")
    return digests


def _is_below(path: str) -> bool:
    pure = PurePosixPath(path)
    usual = str(pure) == path and path.isprintable() and "\\" not in path
    return usual and not pure.is_absolute() and ".." not in pure.parts and path != "."


def _first_damaged(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Find a file that is missing, or has another SHA-256."""
    for path, digest in digests.items():
        file = folder / path
        if not file.is_file() or sha256(file) != digest:
            return path
    return None


def _link(link: Path, folder: Path) -> None:
    """Point a new link at a folder, atomically; the link's time is when the version was last looked for."""
    link.parent.mkdir(parents=True, exist_ok=True)
    staged = link.with_name(f".{link.name}.{os.getpid()}.{threading.get_ident()}")
    staged.symlink_to(folder.resolve())
    staged.replace(link)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, so that one process of this machine fetches it, and the others find it."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_abandoned(content: Path) -> None:
    """Remove the folders of processes that were killed while they fetched, which hold no lock any more."""
    for staged in content.glob(f".*{STAGED}"):
        if staged.lstat().st_uid != os.getuid():
            continue
        with suppress(OSError), staged.with_suffix(".lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(staged)


@contextmanager
def _errors_of_cache() -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise SourceError(
            f"can't keep models in the cache: {err}; XDG_CACHE_HOME may name a folder with room, "
            "which you alone can write to"
        ) from err
