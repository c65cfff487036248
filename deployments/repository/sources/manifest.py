"""`manifest.json` lists the files of a website, which can't list them itself."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from deployments.repository.errors import ModelError, SourceError
from deployments.repository.repository import METADATA, find, sha256, versions

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


def write(root: Path) -> str:
    """Write the manifest of a folder of models into it.

    Returns:
        The manifest's SHA-256, for the configuration.

    Raises:
        ModelError: there is no model, or one has no metadata or does not match it.
    """
    names = sorted(entry.name for entry in root.iterdir() if versions(root, entry.name)) if root.is_dir() else []
    if not names:
        raise ModelError(f"{root} holds no models, <name>/<version>/")
    models = {name: {str(version): _files(root, name, version) for version in versions(root, name)} for name in names}
    content = msgspec.json.format(msgspec.json.encode(Manifest(models))) + b"\n"
    if len(content) > MAX_MANIFEST_BYTES:
        raise ModelError(f"{root} holds more files than a manifest can name in {MAX_MANIFEST_BYTES} bytes")
    # Replaced as a whole, so that no reader gets a part of it.
    descriptor, staged = tempfile.mkstemp(dir=root, prefix=f".{MANIFEST}-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.chmod(staged, 0o644)
        os.replace(staged, root / MANIFEST)
    except BaseException:
        os.unlink(staged)
        raise
    return hashlib.sha256(content).hexdigest()


def _files(root: Path, name: str, version: int) -> dict[str, Entry]:
    model = find(root, name, version)
    if not model.metadata.get("sha256"):
        raise ModelError(f"{model.folder} has no {METADATA} with the files' SHA-256: bring the model in by `prepare`")
    model.verify()
    files = (METADATA, *model.metadata["sha256"])
    return {file: Entry((model.folder / file).stat().st_size, sha256(model.folder / file)) for file in files}
