"""Recognizes what a path holds, and reads it by the importer for it."""

from pathlib import Path

from ensemble_models.imports import kserve, manifests, model_server, seldon, triton
from ensemble_models.imports.found import Found
from ensemble_models.imports.places import CODE
from scripts.errors import ScriptError


def read(path: Path) -> Found:
    """Read another server's repository or configuration.

    Raises:
        ScriptError: it is none that is known, it is damaged, or no member is in it.
    """
    if not path.exists():
        raise ScriptError(f"there is no {path}")
    if path.suffix in CODE and path.is_file() and path.suffix != ".json":
        raise ScriptError(f"{path}: {CODE[path.suffix]}")
    if path.name == triton.CONFIG:
        path = path.parent
    found = _read(path)
    if not found.members:
        reasons = "; ".join(f"{row.part}: {row.field}: {row.note}" for row in found.rows)
        raise ScriptError(f"no model of {path} can be served here: {reasons or 'it has none'}")
    return found


def _read(path: Path) -> Found:
    if model_server.is_config(path):
        return model_server.read(path)
    if path.is_dir() and triton.is_repository(path):
        return triton.read(path)
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.suffix == ".mar":
                raise ScriptError(f"{file}: {CODE['.mar']}")
    elif path.suffix in {".yaml", ".yml", ".json"}:
        found = manifests.documents(path)
        kinds = {str(each["kind"]) for each in found}
        if seldon.DEPLOYMENT in kinds:
            return seldon.read(path.parent, found)
        if kinds & {kserve.SERVICE, kserve.GRAPH}:
            return kserve.read(path.parent, found)
    raise ScriptError(
        f"{path} is neither Triton's model repository, nor OpenVINO Model Server's config.json, nor a manifest of "
        f"KServe or Seldon Core 1; a model's file or folder is named by --members"
    )
