"""What the importers of Kubernetes manifests share: models of a manifest, and shares of the images."""

import math
from pathlib import Path

from deployments.repository.repository import versions
from ensemble_models.imports.found import ImportedMember, Part
from ensemble_models.imports.places import local, model_of
from scripts.errors import ScriptError

REPLICAS = "each replica of the ingress has all inline members: `num_replicas` of Ingress, in `deployments`"
RESOURCES = "`ray_actor_options` of Ingress, in `deployments`"
CODE = "its image's code is not read: the transformer decodes and resizes; --data, or --normalize, says the rest"


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
    if len(members) != 2 or any(each.source is None for each in members):
        raise ScriptError(
            f"{where} splits the images between other than two models whose files are there; name them by --members"
        )
    first, second = members if shares[0] >= shares[1] else members[::-1]
    first.canary, share = second.source, min(shares) / sum(shares)
    first.settings["canary"] = {"share": round(share, 4)}
    return first
