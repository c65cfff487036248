"""`manifest.json` lists the files of a website, which can't list them itself."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from deployments.repository.errors import SourceError

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 4 * 1024 * 1024


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A file.

    Attributes:
        size: in bytes.
        sha256: of the content, hexadecimal.
    """

    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """A repository's files.

    Attributes:
        format: of the manifest.
        models: by name, version and path below the version's folder.
    """

    models: dict[str, dict[str, dict[str, Entry]]]
    format: Literal[1] = 1


def read(content: bytes) -> Manifest:
    """Decode a manifest; raises SourceError if it is none."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as err:
        raise SourceError(f"{MANIFEST} is no manifest, make it with `ensemble manifest`: {err}") from err
