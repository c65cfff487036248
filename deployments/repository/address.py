"""What a configuration names as a model repository or a model: a folder, an address, or a name.

A scheme of addresses is an entry point, which names a `Source`.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from deployments.entry_points import REPOSITORIES, find_class, names, not_installed
from deployments.repository.errors import SourceError
from deployments.repository.repository import MAX_NAME_LENGTH, NAME, Folder, Repository

DIGEST = re.compile("sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class Location:
    """The address of a source.

    Attributes:
        url: without a slash at its end, and without a fragment.
        manifest: the SHA-256 that the source's manifest must have; None for any.
    """

    url: str
    manifest: str | None = None

    @property
    def scheme(self) -> str:
        """Return the scheme, in lower case."""
        return self.url.partition(":")[0]

    def __str__(self) -> str:
        return self.url


# The address of a repository in the configuration.
RepositoryAddress = Path | Location


class Source(Repository):
    """A repository at an address of a scheme.

    Attributes:
        has_manifest: whether an address may end in `#sha256=` and the digest of the source's manifest.
    """

    has_manifest = False

    @classmethod
    def check(cls, address: SplitResult) -> None:
        """Raise SourceError for an address that can't name a repository."""
        if not address.hostname:
            raise SourceError(f"{address.geturl()!r} names no host or bucket")

    def __init__(self, location: Location) -> None:
        """Set the address; raises SourceError if a package that the source needs is missing."""
        self.location = location


def source_class(scheme: str) -> type[Source]:
    """Return the class that reads the addresses of a scheme.

    Raises:
        SourceError: no installed plugin serves the scheme, or the plugin can't be imported.
    """
    known = names(REPOSITORIES)
    if scheme not in known:
        others = "".join(f" or {each}://" for each in known if each != "http")
        raise SourceError(f"{scheme}:// is not supported; models come from a folder{others}{not_installed()}")
    try:
        found: type[Source] = find_class(REPOSITORIES, scheme, Source)
    except ValueError as err:
        raise SourceError(f"{scheme}://: {err}") from err
    return found


def open_repository(where: RepositoryAddress) -> Repository:
    """Open the repository at an address; a process opens a website or bucket once."""
    return Folder(where) if isinstance(where, Path) else _source(where)


@cache
def _source(location: Location) -> Source:
    return source_class(location.scheme)(location)


def parse_repository(given: str | Path | Location) -> RepositoryAddress:
    """Return a folder, or a location if the text begins with a scheme.

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
        address = urlsplit(given)
    except ValueError as err:
        raise SourceError(f"{given!r} is no address: {err}") from err
    _check(given, address)
    source = source_class(address.scheme)
    source.check(address)
    manifest = DIGEST.fullmatch(address.fragment)
    if address.fragment and not (manifest and source.has_manifest):
        raise SourceError(
            f"{given!r}: behind `#` an https:// address may have sha256= and the 64 digits of its manifest's SHA-256"
        )
    url = f"{address.scheme}://{address.netloc}{address.path}".rstrip("/")
    return Location(url, manifest[1] if manifest else None)


def _check(given: str, address: SplitResult) -> None:
    """Raise SourceError for what the address of no scheme may have."""
    if "@" in address.netloc:
        raise SourceError("an address holds no credentials; the environment does (docs/operations.md)")
    if address.query:
        raise SourceError(
            "a repository has no query (what follows `?`); credentials are in the environment (docs/operations.md)"
        )
    if {".", ".."} & set(address.path.split("/")):
        raise SourceError(f"{given!r}: no `.` or `..` in the path")


def split_model(given: str) -> tuple[RepositoryAddress | None, str]:
    """Return the repository and the name of a model that is given by name, or by the path or address of its folder.

    Raises:
        SourceError: it is none of these.
    """
    repository, name = _above(given) if "/" in given else (None, given)
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME_LENGTH:
        shown = name.partition("?")[0]
        raise SourceError(
            f"{shown!r} is no model's name: use at most {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores"
        )
    return repository, name


def _above(given: str) -> tuple[RepositoryAddress, str]:
    """Split the path or address of a model's folder into the repository and the name."""
    address, mark, fragment = given.partition("#")
    above, _, name = address.rstrip("/").rpartition("/")
    if "://" in address and "://" not in above:
        raise SourceError(f"{given!r} names no model; a model's address is its folder's, below the repository's")
    repository = parse_repository(f"{above or '/'}{mark}{fragment}")
    if isinstance(repository, Path) and not repository.is_absolute():
        raise SourceError(f"{given!r}: a model outside of the repository is given by its absolute path")
    return repository, name


def check_model(given: str) -> str:
    """Return a name, path or address of a model; raises SourceError for anything else."""
    split_model(given)
    return given
