"""Models that a file system of fsspec reads: a bucket (`s3://`, `gs://`, `az://`), or Hugging Face (`hf://`)."""

import asyncio
import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import SplitResult

from fsspec.asyn import get_loop, sync
from fsspec.callbacks import Callback

from deployments.repository.address import Location
from deployments.repository.errors import SourceError, Unreachable
from deployments.repository.repository import VERSION
from ensemble_sources.mirror import File, Listing, Mirror

# Drivers retry by themselves, the one of gs:// for minutes.
LISTED_WITHIN_S = 20
# A download takes at most this time, and the time of its bytes at this rate, bytes/s.
FETCHED_WITHIN_S, MIN_RATE = 60, 256 * 1024
# Files of one model, in all versions.
MAX_FILES = 10_000
# What changes with a file's content, by driver.
TAGS = ("ETag", "etag", "generation", "LastModified", "blob_id", "xet_hash", "mtime")
# Errors of this machine's disk, which a download meets, too.
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
# The query of an address, which may be a signature.
QUERY = re.compile(r"\?[^\s'\")]+")


class FileSystem(Mirror):
    """A source that a file system of fsspec reads.

    A subclass names the file system. The cloud's own environment variables and files have the credentials.

    Attributes:
        driver: the file system's class, as `module:Class`.
        options: the arguments of the class.
        refused: the hint to a user whom the source refuses.
        root: what the file system calls the repository's folder.
    """

    driver: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    refused: ClassVar[str] = "are the credentials in the environment right?"

    def __init__(self, location: Location) -> None:
        """Set the address; raises SourceError if the driver is not installed."""
        super().__init__(location)
        self.root = location.url.partition("://")[2]
        module, _, name = self.driver.partition(":")
        try:
            driver = getattr(import_module(module), name)
        except ImportError as err:
            package = module.partition(".")[0]
            raise SourceError(f"{location.scheme}:// needs its driver: pip install {package} ({err})") from err
        with self._typed_errors(location.url):
            self.files = driver(use_listings_cache=False, skip_instance_cache=True, **self.arguments())

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of the file system."""
        return self.options

    def path(self, path: str) -> str:
        """Return what the file system calls a file of the repository."""
        return f"{self.root}/{path}"

    def list(self, name: str) -> Listing:
        """See `Mirror.list`."""
        folder = self.path(name)
        with self._typed_errors(f"{self.location}/{name}"):
            # hf:// keeps listings, whatever `use_listings_cache` says.
            self.files.invalidate_cache()
            found = self._call("find", folder, detail=True, timeout=LISTED_WITHIN_S)
        if len(found) > MAX_FILES:
            raise SourceError(f"{self.location}: {name!r} has {len(found)} files; {MAX_FILES} are allowed")
        listing: Listing = {}
        for path, info in found.items():
            version, _, file = path.removeprefix(f"{folder}/").partition("/")
            if VERSION.fullmatch(version) and file:
                tag = str(next((info[key] for key in TAGS if info.get(key)), None))
                listing.setdefault(int(version), {})[file] = File(int(info["size"]), tag)
        return listing

    def fetch(self, path: str, target: Path, most: int) -> None:
        """See `Mirror.fetch`."""
        where, timeout = f"{self.location}/{path}", FETCHED_WITHIN_S + most / MIN_RATE
        with self._typed_errors(where):
            self._call("get_file", self.path(path), str(target), callback=_Bound(where, most), timeout=timeout)

    def _call(self, method: str, *arguments: Any, timeout: float, **options: Any) -> Any:
        """Call a method of the driver, and end the call after a time, seconds."""
        # The public methods have no timeout, and hf:// has no asynchronous ones.
        if self.files.async_impl:
            function = getattr(self.files, f"_{method}")
        else:
            function = partial(asyncio.to_thread, getattr(self.files, method))
        return sync(get_loop(), function, *arguments, timeout=timeout, **options)

    def typed(self, where: str, error: Exception) -> SourceError:
        """Convert an error of the driver, which has one of many types."""
        line, _, _ = f"{type(error).__name__}: {error}".partition("\n")
        text = QUERY.sub("?…", line)
        status = _status(error)
        if isinstance(error, TimeoutError):
            return Unreachable(f"{where} did not answer in time; are the endpoint and the network right?")
        if isinstance(error, FileNotFoundError) or status in {404, 410}:
            return SourceError(f"{where} is not there; is the address right? ({text})")
        if isinstance(error, PermissionError) or status in {401, 403}:
            return SourceError(f"{where} is refused; {self.refused} ({text})")
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return SourceError(
                f"{where}: its certificate is not trusted; SSL_CERT_FILE may name the authority's, a PEM file: {text}"
            )
        if "credential" in text.lower():
            return SourceError(f"{where} needs credentials in the environment (docs/operations.md): {text}")
        return Unreachable(f"{where} can't be read ({text}); are the endpoint and the network right?")

    @contextmanager
    def _typed_errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except Exception as err:
            if isinstance(err, OSError) and err.errno in OF_THE_DISK:
                raise
            raise self.typed(where, err) from err


class S3(FileSystem):
    """A bucket of Amazon S3, or of another server with its API."""

    driver = "s3fs:S3FileSystem"
    options: ClassVar = {
        "config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 3}},
    }


class Gs(FileSystem):
    """A bucket of Google Cloud Storage."""

    # The class that `gcsfs` exports looks up the type of each bucket with credentials, which takes seconds without any.
    driver = "gcsfs.core:GCSFileSystem"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of the file system; an emulator needs no credentials, as with Google's own client."""
        is_emulated = bool(os.environ.get("STORAGE_EMULATOR_HOST"))
        return {"requests_timeout": 30, **({"token": "anon"} if is_emulated else {})}


class Az(FileSystem):
    """A container of Azure Blob Storage."""

    driver = "adlfs:AzureBlobFileSystem"
    options: ClassVar = {"connection_timeout": 10, "read_timeout": 30}


class Hf(FileSystem):
    """A repository on Hugging Face."""

    driver = "huggingface_hub:HfFileSystem"

    @classmethod
    def check(cls, address: SplitResult) -> None:
        """Raise SourceError unless the address names an owner and a repository."""
        super().check(address)
        if not address.path.strip("/"):
            raise SourceError(f"{address.geturl()!r} names no repository; on Hugging Face that is hf://OWNER/NAME")


class _Bound(Callback):  # type: ignore[misc]
    """Stops a download that has become longer than the file may be."""

    def __init__(self, where: str, most: int) -> None:
        super().__init__()
        self._where, self._most = where, most

    def relative_update(self, inc: int = 1) -> None:
        """Count bytes that have arrived."""
        super().relative_update(inc)
        if self.value > self._most:
            raise SourceError(f"{self._where} is longer than the {self._most} bytes that it may have")


def _status(error: Exception) -> int | None:
    """Return the HTTP status that an error of a driver has, if any."""
    response = getattr(error, "response", None)
    status: int | None = getattr(error, "status", None) or getattr(response, "status_code", None)
    return status
