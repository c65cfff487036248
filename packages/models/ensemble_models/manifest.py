"""Writes the manifest of a model repository that a website serves."""

import hashlib
import os
from pathlib import Path

import click
import msgspec

from deployments.repository.errors import ModelError
from deployments.repository.repository import METADATA, find, sha256, versions
from ensemble_models.options import FILE, Command
from ensemble_models.writing import model_names
from ensemble_sources.website import MANIFEST, MAX_MANIFEST_BYTES, Entry, Manifest


def write(root: Path) -> str:
    """Write the manifest of a folder of models into it.

    Returns:
        The manifest's SHA-256, for the configuration.

    Raises:
        ModelError: there is no model, or one has no metadata or does not match it.
    """
    if not (names := model_names(root)):
        raise ModelError(f"{root} holds no models, <name>/<version>/")
    models = {name: {str(version): _files(root, name, version) for version in versions(root, name)} for name in names}
    content = msgspec.json.format(msgspec.json.encode(Manifest(models))) + b"\n"
    if len(content) > MAX_MANIFEST_BYTES:
        raise ModelError(f"{root} holds more files than a manifest can name in {MAX_MANIFEST_BYTES} bytes")
    # Replaced as a whole, so that no reader gets a part of it.
    staged = root / f".{MANIFEST}-{os.getpid()}"
    staged.write_bytes(content)
    staged.replace(root / MANIFEST)
    return hashlib.sha256(content).hexdigest()


def _files(root: Path, name: str, version: int) -> dict[str, Entry]:
    model = find(root, name, version)
    if not model.metadata.get("sha256"):
        raise ModelError(f"{model.folder} has no {METADATA} with the files' SHA-256: bring the model in by `prepare`")
    model.verify()
    files = (METADATA, *model.metadata["sha256"])
    return {file: Entry((model.folder / file).stat().st_size, sha256(model.folder / file)) for file in files}


@click.command("manifest", cls=Command)
@click.argument("folder", type=FILE)
def main(folder: Path) -> None:
    """Write the manifest of a model repository that a website serves, and print how a configuration names it.

    ensemble manifest models/

    FOLDER is the repository, <name>/<version>/. Each model of it is first compared with the SHA-256 in its
    `metadata.json`. Put the folder on the website as it is, `manifest.json` last; `model_repository` is its address
    with the manifest's SHA-256.
    """
    digest = write(folder)
    print(f"wrote {folder / MANIFEST}; in the configuration, with the folder's address:")
    print(f"  model_repository: https://...#sha256={digest}")


if __name__ == "__main__":
    main()
