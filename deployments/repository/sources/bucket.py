"""Models in a bucket (`s3://` of any server with that API, `gs://`, `az://`) or on Hugging Face, by fsspec drivers."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from deployments.repository.errors import SourceError, Unreachable
from deployments.repository.repository import VERSION
from deployments.repository.sources.location import Location
from deployments.repository.sources.source import File, Listing

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
    "az": ("adlfs", "AzureBlobFileSystem", {"connection_timeout": 10, "read_timeout": 30}),
    "hf": ("huggingface_hub", "HfFileSystem", {}),
}
# What changes with a file's content, by driver.
TAGS = ("ETag", "etag", "generation", "LastModified", "blob_id", "xet_hash")


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
        from fsspec.asyn import get_loop, sync

        # The public `find` has no timeout, and hf:// has no other one.
        find = self._files._find if self._files.async_impl else partial(asyncio.to_thread, self._files.find)
        with self._errors_as_ours(folder):
            # hf:// keeps listings, whatever `use_listings_cache` says.
            self._files.invalidate_cache()
            found = sync(get_loop(), find, folder, detail=True, timeout=LISTED_WITHIN_S)
        if len(found) > MAX_FILES:
            raise SourceError(f"{self._location}: {name!r} has {len(found)} files; {MAX_FILES} are allowed")
        listing: Listing = {}
        for path, info in found.items():
            version, _, file = path.removeprefix(f"{folder}/").partition("/")
            if VERSION.fullmatch(version) and file:
                tag = next((info[key] for key in TAGS if info.get(key)), None)
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
            raise SourceError(f"{where} is not there; is the address right? ({err})") from err
        except Exception as err:
            text, _, _ = f"{type(err).__name__}: {err}".partition("\n")
            status = getattr(getattr(err, "response", None), "status_code", None)
            if isinstance(err, PermissionError) or status in {401, 403}:
                raise SourceError(
                    f"{where} is refused; are the credentials in the environment right? ({text})"
                ) from err
            if "credential" in text.lower():
                raise SourceError(f"{where} needs credentials in the environment (docs/operations.md): {text}") from err
            raise Unreachable(f"{where} can't be read ({text}); are the endpoint and the network right?") from err
