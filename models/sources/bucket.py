"""Models in a bucket, `s3://` (of any server with S3's API) or `gs://`, by the drivers of fsspec."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from models.errors import SourceError, Unreachable
from models.sources.location import Location
from models.sources.source import File, Listing

PIECE = 1024 * 1024
# Bytes that are read ahead.
BLOCK = 8 * PIECE
# Drivers retry by themselves, that of gs:// for minutes.
LISTED_WITHIN_S = 20
# Files of one model, in all versions.
MAX_FILES = 10_000
TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 3}}
# Module, class and arguments of each driver; credentials and endpoints come from the environment. The GCSFileSystem
# that `gcsfs` exports looks up the type of each bucket with credentials, which takes seconds where there are none.
DRIVERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "s3": ("s3fs", "S3FileSystem", {"config_kwargs": TIMEOUTS}),
    "gs": ("gcsfs.core", "GCSFileSystem", {"requests_timeout": 30}),
}


class Bucket:
    """Reads a bucket; the credentials are found as by the cloud's own tools."""

    def __init__(self, location: Location) -> None:
        """Set the address; raises SourceError if its driver is not installed."""
        self._location = location
        self._root = location.url.partition("://")[2]
        module, kind, options = DRIVERS[location.scheme]
        try:
            driver = getattr(importlib.import_module(module), kind)
        except ImportError as err:
            raise SourceError(
                f"{location.scheme}:// needs its driver: pip install {module.partition('.')[0]} ({err})"
            ) from err
        if location.scheme == "gs" and os.environ.get("STORAGE_EMULATOR_HOST"):
            # As Google's own client does: an emulator needs no credentials, and none are looked for.
            options = {**options, "token": "anon"}
        with self._errors_as_ours(self._root):
            self._files = driver(use_listings_cache=False, skip_instance_cache=True, **options)

    def list(self, name: str) -> Listing:
        """See `Source.list`."""
        folder = f"{self._root}/{name}"
        # Every driver depends on it.
        from fsspec.asyn import sync

        with self._errors_as_ours(folder):
            # The public `find` has no timeout.
            found = sync(self._files.loop, self._files._find, folder, detail=True, timeout=LISTED_WITHIN_S)
        if len(found) > MAX_FILES:
            raise SourceError(f"{self._location}: {name!r} has {len(found)} files; {MAX_FILES} are allowed")
        listing: Listing = {}
        for path, info in found.items():
            version, _, file = path.removeprefix(f"{folder}/").partition("/")
            if version.isdecimal() and str(int(version)) == version and file:
                tag = info.get("ETag") or info.get("etag") or info.get("generation") or info.get("LastModified")
                listing.setdefault(int(version), {})[file] = File(int(info["size"]), str(tag))
        return listing

    def read(self, path: str) -> Iterator[bytes]:
        """See `Source.read`."""
        file = f"{self._root}/{path}"
        with (
            self._errors_as_ours(file),
            self._files.open(file, "rb", block_size=BLOCK, cache_type="readahead") as stream,
        ):
            while piece := stream.read(PIECE):
                yield piece

    @contextmanager
    def _errors_as_ours(self, path: str) -> Iterator[None]:
        """Raise the errors of the drivers, which are of many types, as SourceError."""
        where = f"{self._location.scheme}://{path}"
        try:
            yield
        except SourceError:
            raise
        except TimeoutError as err:
            raise Unreachable(f"{where} did not answer in time; are the endpoint and the network right?") from err
        except FileNotFoundError as err:
            raise SourceError(f"{where} is not there; is the bucket's name right? ({err})") from err
        except PermissionError as err:
            raise SourceError(f"{where} is refused; are the credentials in the environment right? ({err})") from err
        except Exception as err:
            text = f"{type(err).__name__}: {err}"
            if "credential" in text.lower():
                raise SourceError(f"{where} needs credentials in the environment (docs/operations.md): {text}") from err
            raise Unreachable(f"{where} can't be read ({text}); are the endpoint and the network right?") from err
