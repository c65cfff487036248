"""The addresses of model repositories that are not folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from deployments.repository.errors import SourceError
from deployments.repository.repository import MAX_NAME_LENGTH, NAME

SCHEMES = ("https", "http", "s3", "gs", "az", "hf")
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
DIGEST = re.compile("sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class Location:
    """The address of a website or bucket.

    Attributes:
        url: without a slash at its end, and without a fragment.
        manifest: the SHA-256 that the manifest of a website must have; None for any.
    """

    url: str
    manifest: str | None = None

    @property
    def scheme(self) -> str:
        """One of `SCHEMES`."""
        return self.url.partition(":")[0]

    def __str__(self) -> str:
        return self.url


def parse_repository(given: str | Path | Location) -> Path | Location:
    """A folder; or an address, if it begins with a scheme.

    Raises:
        SourceError: it can't be the address of a repository.
    """
    if isinstance(given, Path | Location):
        return given
    if not isinstance(given, str) or not given:
        raise SourceError("a folder's path or an address is needed")
    if "://" not in given:
        return Path(given)
    try:
        parts = urlsplit(given)
        host = parts.hostname
    except ValueError as err:
        raise SourceError(f"{given!r} is no address: {err}") from err
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES if scheme != "http")
        raise SourceError(f"{parts.scheme}:// is not supported; models come from a folder or {known}")
    if "@" in parts.netloc:
        raise SourceError("an address holds no credentials; the environment does (docs/operations.md)")
    if not host:
        raise SourceError(f"{given!r} names no host or bucket")
    if parts.scheme == "hf" and not parts.path.strip("/"):
        raise SourceError(f"{given!r} names no repository; on Hugging Face that is hf://OWNER/NAME")
    if parts.query:
        raise SourceError(
            "a repository has no query (what follows `?`); credentials are in the environment (docs/operations.md)"
        )
    if any(part in {".", ".."} for part in parts.path.split("/")):
        raise SourceError(f"{given!r}: no `.` or `..` in the path")
    if parts.scheme == "http" and host not in LOOPBACK:
        raise SourceError(f"{given!r}: http:// is for this machine alone (127.0.0.1); use https://")
    return Location(f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/"), _digest(given, parts))


def _digest(given: str, parts: SplitResult) -> str | None:
    if not parts.fragment:
        return None
    found = DIGEST.fullmatch(parts.fragment)
    if found is None or parts.scheme not in {"http", "https"}:
        raise SourceError(
            f"{given!r}: behind `#` an https:// address may have sha256= and the 64 digits of its manifest's SHA-256"
        )
    return found[1]


def split_model(given: str) -> tuple[Path | Location | None, str]:
    """The repository and the name of a model that is given by its name, or by the path or address of its folder.

    Raises:
        SourceError: it is none of these.
    """
    if "/" not in given:
        repository, name = None, given
    else:
        address, mark, fragment = given.partition("#")
        above, _, name = address.rstrip("/").rpartition("/")
        if "://" in address and "://" not in above:
            raise SourceError(f"{given!r} names no model; a model's address is its folder's, below the repository's")
        repository = parse_repository(f"{above or '/'}{mark}{fragment}")
        if isinstance(repository, Path) and not repository.is_absolute():
            raise SourceError(f"{given!r}: a model outside of the repository is given by its absolute path")
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME_LENGTH:
        shown = name.partition("?")[0]
        raise SourceError(
            f"{shown!r} is no model's name: use at most {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores"
        )
    return repository, name


def checked(given: str) -> str:
    """Return a name, path or address of a model; raises SourceError for anything else."""
    split_model(given)
    return given
