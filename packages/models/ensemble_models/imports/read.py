"""Recognizes what a path holds, and reads it by the importer for it."""

from pathlib import Path

from ensemble_models.exporters.folder import check_read
from ensemble_models.exporters.names import documents
from ensemble_models.imports import kserve, model_server, seldon, triton
from ensemble_models.imports.found import Found
from scripts.errors import ScriptError


def read(path: Path) -> Found:
    """Read another server's repository or configuration.

    Raises:
        ScriptError: it is none that is known, it is damaged, or no member is in it.
    """
    if not path.exists():
        raise ScriptError(f"there is no {path}")
    if path.suffix != ".json":
        check_read(path)
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
        for file in sorted(path.glob("*.mar")):
            check_read(file)
    elif path.suffix in {".yaml", ".yml", ".json"}:
        found = [each for each in documents(path) if isinstance(each, dict) and isinstance(each.get("kind"), str)]
        kinds = {each["kind"] for each in found}
        if seldon.DEPLOYMENT in kinds:
            return seldon.read(path.parent, found)
        if kinds & {kserve.SERVICE, kserve.GRAPH}:
            return kserve.read(path.parent, found)
    raise ScriptError(
        f"{path} is neither Triton's model repository, nor OpenVINO Model Server's config.json, nor a manifest of "
        f"KServe or Seldon Core 1; a model's file or folder is named by --members"
    )
