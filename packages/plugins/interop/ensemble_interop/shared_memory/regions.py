"""System shared memory: a client on this machine writes tensors there instead of sending them.

A region is a part of an object in /dev/shm that the client has registered under a name. It is read and written, never
mapped: a client that shortens an object would end the processes that have mapped it. A registration is a file in a
folder that all ingress replicas of this machine share, so it reaches each of them, and later ones.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from deployments.contract.errors import ImageTooLarge, InvalidParameter, NotFound
from deployments.folder_permissions import is_private, make_private
from deployments.ingress.protocol import TensorStore

OBJECTS = Path("/dev/shm")  # noqa: S108
KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9_.-]{0,199})")
NAME = re.compile(r"[!-~]{1,200}")
REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
MOST_REGIONS = 1024
MOST_BYTES = 2**40
OFF = "system shared memory is off; ingress.shared_memory_prefix turns it on"


class Region(msgspec.Struct, frozen=True):
    """A registered region: `byte_size` bytes from `offset` of the object that `key` names."""

    name: str
    key: str
    offset: int
    byte_size: int


class Place(NamedTuple):
    """A part of a region: its name, and bytes."""

    region: str
    size: int
    offset: int


class Regions(TensorStore):
    """The registered regions of this machine."""

    def __init__(self, folder: Callable[[], Path | None], prefix: Callable[[], str | None]) -> None:
        """Set what returns the folder of registrations and the prefix of keys; None for no shared memory."""
        self._folder = folder
        self._prefix = prefix

    @property
    def is_on(self) -> bool:
        """Whether clients may use shared memory."""
        return self._prefix() is not None and self._folder() is not None

    def register(self, region: Region) -> None:
        """Register a region with every ingress of this machine.

        Raises:
            NotFound: shared memory is off, or there is no such object.
            InvalidParameter: the name is taken, the key is not allowed, the object is smaller, or there are too many.
        """
        folder = self._checked_folder()
        if NAME.fullmatch(region.name) is None or not 0 <= region.offset <= MOST_BYTES:
            raise InvalidParameter("a region has a name of 1 to 200 ASCII characters and an offset of at least 0")
        if not 1 <= region.byte_size <= MOST_BYTES:
            raise InvalidParameter(f"a region has at least a byte; got byte_size {region.byte_size}")
        with self._opened(region.key, os.O_RDONLY) as (_, size):
            if region.offset + region.byte_size > size:
                raise InvalidParameter(
                    f"the object {region.key[:80]!r} has {size} bytes; the region would end at "
                    f"{region.offset + region.byte_size}"
                )
        try:
            make_private(folder)
            if len(os.listdir(folder)) >= MOST_REGIONS:
                raise InvalidParameter(f"there are {MOST_REGIONS} regions already; unregister some")
            made = folder / f"{_digest(region.name)}.{os.getpid()}.new"
            made.write_bytes(msgspec.json.encode(region))
            try:
                # Unlike renaming, linking does not replace another region; and the file is whole.
                os.link(made, folder / _digest(region.name))
            finally:
                made.unlink()
        except FileExistsError as err:
            raise InvalidParameter(f"the region {region.name[:80]!r} is registered already; unregister it") from err

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them; it is no error if there is none."""
        folder = self._checked_folder()
        for path in [folder / _digest(name)] if name else _registrations(folder):
            path.unlink(missing_ok=True)

    def listed(self, name: str = "") -> list[Region]:
        """List a region, or all regions; raise NotFound for an unknown name, or if shared memory is off."""
        folder = self._checked_folder()
        if name:
            return [self._find(folder, name)]
        found = [_read(path) for path in _registrations(folder)]
        return sorted((region for region in found if region is not None), key=lambda region: region.name)

    def place(self, parameters: Mapping[str, Any]) -> Place | None:
        """Return the place that the parameters of a tensor name, None for none; raises InvalidParameter."""
        if REGION not in parameters:
            return None
        found = Place(parameters[REGION], parameters.get(SIZE, 0), parameters.get(OFFSET, 0))
        if [type(each) for each in found] != [str, int, int]:
            raise InvalidParameter(f"{REGION!r} must be a name, {SIZE!r} and {OFFSET!r} numbers of bytes")
        return found

    def read(self, place: Place, limit: int) -> bytes:
        """Read the bytes of a tensor.

        Raises:
            NotFound: there is no such region, or its object has gone.
            InvalidParameter: it has not so many bytes.
            ImageTooLarge: there are more than `limit`.
        """
        if place.size > limit:
            raise ImageTooLarge(f"the tensor has {place.size} bytes; at most {limit} are accepted")
        with self._part(place, os.O_RDONLY) as (descriptor, start):
            content = os.pread(descriptor, place.size, start)
        if len(content) != place.size:
            raise InvalidParameter(f"the object of the region {place.region[:80]!r} has become shorter")
        return content

    def check(self, place: Place) -> None:
        """Raise as `write` does if there is no such part of a region, or it can't be opened to be written."""
        with self._part(place, os.O_RDWR):
            pass

    def write(self, place: Place, raw: bytes) -> dict[str, Any]:
        """Write a tensor; return the parameters that name its place.

        Raises:
            NotFound: as `read`.
            InvalidParameter: the place has fewer bytes, or the machine has no memory for all of them.
        """
        name, size, offset = place
        if len(raw) > size:
            raise InvalidParameter(f"the output has {len(raw)} bytes; {size} of the region {name[:80]!r} are for it")
        with self._part(place, os.O_RDWR) as (descriptor, start):
            _write_whole(descriptor, raw, start, name)
        return {REGION: name, SIZE: len(raw), **({OFFSET: offset} if offset else {})}

    @contextmanager
    def _part(self, place: Place, flags: int) -> Iterator[tuple[int, int]]:
        """Open the object of a region; yield it and the position of this part in it."""
        name, size, offset = place
        region = self._find(self._checked_folder(), name)
        if not (offset >= 0 and size >= 1 and offset + size <= region.byte_size):
            raise InvalidParameter(
                f"the region {name[:80]!r} has {region.byte_size} bytes; asked for are {size} from {offset}"
            )
        with self._opened(region.key, flags) as (descriptor, whole):
            if region.offset + offset + size > whole:
                raise InvalidParameter(f"the object of the region {name[:80]!r} has become shorter")
            yield descriptor, region.offset + offset

    @contextmanager
    def _opened(self, key: str, flags: int) -> Iterator[tuple[int, int]]:
        """Open the object that a key names, a file of /dev/shm itself and no link; yield it and its size."""
        found, prefix = KEY.fullmatch(key), (self._prefix() or "").lstrip("/")
        if found is None or not prefix or not found[1].startswith(prefix):
            raise InvalidParameter(f"the key {key[:80]!r} is no name of an object that begins with {prefix!r}")
        try:
            descriptor = os.open(OBJECTS / found[1], flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as err:
            raise NotFound(f"there is no shared memory {key[:80]!r} that the server can open") from err
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidParameter(f"the key {key[:80]!r} names no shared memory")
            yield descriptor, status.st_size
        finally:
            os.close(descriptor)

    def _checked_folder(self) -> Path:
        if self._prefix() is None or (folder := self._folder()) is None:
            raise NotFound(OFF)
        for level in (folder.parent, folder):
            # What another user has put there is not read.
            if os.path.lexists(level) and not is_private(level):
                raise NotFound(f"system shared memory is off: {level} is not a folder of the server's user alone")
        return folder

    def _find(self, folder: Path, name: str) -> Region:
        region = _read(folder / _digest(name))
        if region is None:
            raise NotFound(f"there is no region {name[:80]!r}; register it first")
        return region


def _write_whole(descriptor: int, content: bytes, start: int, name: str) -> None:
    """Write all of the content; where /dev/shm becomes full, the system writes a part of it without an error."""
    left = memoryview(content)
    try:
        while left:
            if not (written := os.pwrite(descriptor, left, start + len(content) - len(left))):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left = left[written:]
    except OSError as err:
        raise InvalidParameter(
            f"{len(left)} of {len(content)} bytes can't be written into the region {name[:80]!r}: {err.strerror}; make "
            "room in /dev/shm, and write to all of an object before it is registered"
        ) from err


def _registrations(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if not path.suffix]


def _read(path: Path) -> Region | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Region)
    except FileNotFoundError:
        return None


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
