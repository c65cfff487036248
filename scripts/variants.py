"""Which variant of its version a member serves on this machine, in words."""

from collections.abc import Iterator

from deployments.contract.errors import ConfigurationError
from deployments.members.openvino_config import OpenVinoConfig
from deployments.members.precision import kind
from deployments.repository.address import RepositoryAddress
from graph.schema import EnsembleConfig

# A smaller gain is worth no word.
LEAST_GAIN = 1.2


def choices(config: EnsembleConfig) -> Iterator[str]:
    """State which variant of a version each member serves here, and where another one would be faster.

    Raises:
        ConfigurationError: there is no such variant.
    """
    repository = config.model_repository
    for member in config.members:
        if not isinstance(member, OpenVinoConfig):
            continue
        if member.precision is not None:
            yield f"{member.name}: {member.choice(repository)}"
        elif member.version_policy == "fixed" and (hint := _faster(member, repository)):
            yield hint


def _faster(member: OpenVinoConfig, repository: RepositoryAddress) -> str:
    """Name a variant that takes less CPU time here than the served version; empty for none, or for a remote model."""
    models, _ = member.repository_and_name(repository)
    served = member.find(repository).version
    if models.is_atomic:
        return ""
    try:
        found = member.model_copy(update={"precision": "fastest"}).choice(repository)
    except ConfigurationError:
        # Of a version that nobody serves.
        return ""
    if found is None or served not in found.costs:
        return ""
    times = found.costs[served] / found.costs[found.model.version]
    if times < LEAST_GAIN:
        return ""
    return (
        f"{member.name} serves version {served}; version {found.model.version} ({kind(found.model)}) would be "
        f"{times:.1f} times as fast here: give the member `precision: fastest`"
    )
