"""API keys: a file of their SHA-256 digests, a line each, that is read again when it changes.

    # name  SHA-256 of the key  requests a second (without it as many as are admitted)  end (without it never)
    mobile  2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae  50
    mobile  fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9  50  until=2026-12-01T12:00Z

A key that is being replaced has an end, and then its name has a second key. Keys are random, of 256 bits, so a digest
needs no salt.
"""

import hashlib
import hmac
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deployments.contract.errors import ConfigurationError

logger = logging.getLogger("ray.serve")

MOST_KEYS, MOST_BYTES = 1000, 256 * 1024
MOST_REQUESTS_S = 1_000_000.0
LOOK_EVERY_S = 1.0
UNTIL = "until="
LINE = re.compile(
    rf"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}})\s+(?P<digest>[0-9a-f]{{64}})"
    rf"(\s+(?P<rate>(?!{UNTIL})\S+))?(\s+{UNTIL}(?P<until>\S+))?"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key, as the file has it.

    Attributes:
        name: whose it is.
        digest: its SHA-256.
        rate: its requests per second; None for no limit.
        until: when it ends; None for never.
    """

    name: str
    digest: bytes
    rate: float | None = None
    until: datetime | None = None


def digest(key: str) -> bytes:
    """Return a key's SHA-256, 32 bytes: the server keeps only this digest."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def parse(text: str) -> tuple[Key, ...]:
    """Parse the text of a file of keys.

    Raises:
        ConfigurationError: names the line at fault, and what it should be.
    """
    keys: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (content := line.partition("#")[0].strip()):
            continue
        key = _key(content, number)
        others = [each for each in keys if each.name == key.name]
        if len(others) > 1 or [key.until, *(each.until for each in others)].count(None) > 1:
            raise ConfigurationError(
                f"line {number}: the name {key.name!r} is used twice; a name may have two keys if one has an end, and "
                "ensemble keys rotate writes them"
            )
        keys.append(key)
        if len(keys) > MOST_KEYS:
            raise ConfigurationError(f"there are more than {MOST_KEYS} keys")
    return tuple(keys)


def _key(line: str, number: int) -> Key:
    """Read a line; raise ConfigurationError as `parse` does."""
    fault = ConfigurationError(
        f"line {number}: a line has a name of at most 64 letters, digits, '.', '_' and '-'; the SHA-256 of a key in 64 "
        f"small hexadecimal digits; and perhaps requests a second, above 0, and {UNTIL}TIME with a zone, such as "
        "2026-12-01T12:00:00Z; ensemble keys add writes such lines"
    )
    if (found := LINE.fullmatch(line)) is None:
        raise fault
    try:
        rate = None if found["rate"] is None else float(found["rate"])
        until = None if found["until"] is None else datetime.fromisoformat(found["until"])
    except ValueError as err:
        raise fault from err
    if (rate is not None and not 0 < rate <= MOST_REQUESTS_S) or (until is not None and until.tzinfo is None):
        raise fault
    return Key(found["name"], bytes.fromhex(found["digest"]), rate, until)


def read(path: Path) -> tuple[Key, ...]:
    """Read a file of keys.

    Raises:
        ConfigurationError: it can't be read, is too large, or a line is at fault.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigurationError(f"{path} has more than {MOST_BYTES} bytes")
        return parse(content.decode())
    except (OSError, UnicodeError) as err:
        raise ConfigurationError(f"{path} can't be read: {err}") from err
    except ConfigurationError as err:
        raise ConfigurationError(f"{path}: {err}") from err


class KeyFile:
    """The keys of a file, as it is now."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file; `clock` is in seconds, and keys end by the time of day.

        Raises:
            ConfigurationError: as `read` does.
        """
        self._path, self._clock = path, clock
        self._state = self._stat()
        self._looked = clock()
        self._keys = read(path)

    def find(self, key: str) -> Key | None:
        """Find a key's entry, in a time that does not depend on the entries; None if there is none."""
        if self._clock() - self._looked > LOOK_EVERY_S:
            self._look()
        wanted, found = digest(key), None
        for each in self._keys:
            if hmac.compare_digest(each.digest, wanted):
                found = each
        has_ended = found is not None and found.until is not None and found.until <= datetime.now(UTC)
        return None if has_ended else found

    def _look(self) -> None:
        """Read the file again if it has changed; a bad one is refused and logged, and the previous keys stay."""
        self._looked = self._clock()
        if (state := self._stat()) == self._state:
            return
        self._state = state
        try:
            self._keys = read(self._path)
            logger.info("%d keys are read from %s", len(self._keys), self._path)
        except ConfigurationError as err:
            logger.error("the keys before stay in force: %s", err)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
