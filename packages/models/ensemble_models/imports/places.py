"""Makes members of the models that another server's configuration names: files of its folder, and no others."""

import math
import re
from collections.abc import Collection
from pathlib import Path

import openvino as ov

from deployments.repository.errors import ModelError, reason
from deployments.repository.repository import versions
from ensemble_models.exporters.folder import model_in
from ensemble_models.imports.found import CHANGED, TAKEN, ImportedMember, Part
from scripts.errors import ScriptError

SCHEME = re.compile(r"[a-z0-9]+://")
IMAGE, SCORES = 4, 2
# Of manifests of Kubernetes.
REPLICAS = "each replica of the ingress has all inline members: `num_replicas` of Ingress, in `deployments`"
RESOURCES = "`ray_actor_options` of Ingress, in `deployments`"
CODE = "its image's code is not read: the transformer decodes and resizes; --data, or --normalize, says the rest"


def inside(root: Path, file: Path, what: str) -> Path:
    """Return a file of a folder as it is.

    Raises:
        ScriptError: it is outside of the folder, perhaps by a link, or absent.
    """
    if not _is_inside(root, file):
        raise ScriptError(f"{what} leads out of {root}, where nothing is read; copy the file into the folder")
    if not file.exists():
        raise ScriptError(f"{what}: there is no {file}")
    return file


def _is_inside(root: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    # A link that leads to itself.
    except RuntimeError:
        return False


def local(root: Path, address: str) -> Path | None:
    """Find what an address means in a folder, by as many of the last parts of its path as are there; None if nothing.

    The folder may be a copy of what a container mounts or a bucket holds.
    """
    parts = [part for part in SCHEME.sub("", address).split("/") if part not in {"", ".", ".."}]
    for first in range(len(parts)):
        path = root.joinpath(*parts[first:])
        if path.exists() and _is_inside(root, path):
            return path
    return None


def model_of(root: Path, folder: Path, names: Collection[str] = ()) -> Path:
    """Find the model in the folder of a version: by one of its names, else the only one.

    Raises:
        ModelError: see `model_in`.
        ScriptError: it is outside of the folder `root`.
    """
    known = [folder / name for name in names if (folder / name).exists()]
    file = known[0] if known else model_in(folder)
    return inside(root, file, str(file))


def choose_version(part: Part, field: str, base: Path) -> Path:
    """Choose the version that is served: the highest that the policy allows; return its folder.

    Raises:
        ScriptError: there is none.
    """
    policy = part.part(field)
    allowed = policy.part("specific").get("versions", list)
    numbers = [number for number in versions(base.parent, base.name) if allowed is None or number in allowed]
    if not numbers:
        raise ScriptError(f"{part.name}: {base} has no folder of a version that {field} allows, such as 1")
    if len(numbers) > 1:
        others = ", ".join(map(str, numbers[:-1]))
        part.found.note(
            part.name, field, CHANGED, f"serves version {numbers[-1]}; for {others} prepare it and set `canary`"
        )
    else:
        part.tell(TAKEN, field, f"version {numbers[-1]}")
    return base / str(numbers[-1])


def is_classifier(source: Path) -> bool:
    """Check whether a model has an input for images and an output with a score for each class.

    Raises:
        ModelError: OpenVINO can't read it.
    """
    try:
        network = ov.Core().read_model(source)
    except RuntimeError as err:
        raise ModelError(f"OpenVINO can't read {source}: {reason(err)}") from err
    images = [each.get_partial_shape().rank for each in network.inputs]
    scores = [each.get_partial_shape().rank for each in network.outputs]
    return any(rank.is_static and rank.get_length() == IMAGE for rank in images) and any(
        rank.is_dynamic or rank.get_length() == SCORES for rank in scores
    )


def named(manifest: Part) -> str:
    """Return the name in a manifest's metadata."""
    return manifest.part("metadata").get("name", str) or "unnamed"


def member_of(root: Path, name: str, address: str) -> ImportedMember | None:
    """Make a member of the model that an address means, if its files are in the folder of the manifest."""
    path = local(root, address) if address else None
    if path is None:
        return None
    member = ImportedMember(name)
    if numbers := versions(path.parent, path.name):
        path = path / str(numbers[-1])
        member.flags["--version"] = (path.name,)
    member.source = model_of(root, path)
    return member


def share_out(members: list[ImportedMember], shares: list[float], where: str) -> ImportedMember:
    """Make the second of two members the canary of the first one.

    Raises:
        ScriptError: there are not two, one is on another server, or a share is none.
    """
    if not all(0 < share < math.inf for share in shares):
        raise ScriptError(f"{where} splits the images by {shares}; each share has to be above 0")
    if len(members) != 2 or len(shares) != 2 or any(each.source is None for each in members):
        raise ScriptError(
            f"{where} splits the images between other than two models whose files are there; name them by --members"
        )
    first, second = members if shares[0] >= shares[1] else members[::-1]
    first.canary, share = second.source, min(shares) / sum(shares)
    first.settings["canary"] = {"share": round(share, 4)}
    return first
