"""What the members must agree on, and the pixels that each wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Version
from deployments.contract.member import Signature
from deployments.contract.preprocessing import AsSent, Preprocessing, Size, Wanted
from deployments.transformer.transformer import TransformerConfig
from graph.config import EnsembleConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """What holds for all members, and the preprocessing of each by its name.

    Attributes:
        labels: the class names, in order of index.
        preprocessing: what each member wants.
        versions: of the model of each; None for one that could not be asked.
        voters: the members of which the ensemble's answer is made.
    """

    labels: tuple[str, ...]
    preprocessing: Mapping[str, Wanted]
    versions: Mapping[str, Version | None]
    voters: tuple[str, ...]

    @property
    def pixels(self) -> dict[str, str]:
        """The key of the pixels that each voter takes."""
        return {name: self.preprocessing[name].key for name in self.voters}

    @property
    def wanted(self) -> dict[str, Wanted]:
        """Every preprocessing once, by its key."""
        return {preprocessing.key: preprocessing for preprocessing in self.preprocessing.values()}


def agree(config: EnsembleConfig) -> Agreement:
    """Read every member's signature and bring them together.

    Raises:
        ConfigurationError: a member can't be served, or two of them differ in classes or labels.
    """
    signatures = {member.name: member.signature(config.model_repository) for member in config.nodes}
    classes = _agreed("number of classes", {name: told.classes for name, told in signatures.items()})
    labels = _agreed("labels", {name: told.labels for name, told in signatures.items()})
    if classes is None and labels is None:
        raise ConfigurationError("members: none tells its classes; give a remote one `labels`, or start its server")
    if labels is not None and classes not in {None, len(labels)}:
        raise ConfigurationError(f"the models have {classes} classes but {len(labels)} labels")
    agreed = Agreement(
        labels or tuple(str(index) for index in range(classes or 0)),
        {name: _preprocessing(name, signatures, config.transformer) for name in signatures},
        {name: told.version for name, told in signatures.items()},
        tuple(member.name for member in config.voters),
    )
    for name, canary in config.canaries.items():
        _check_canary(name, canary.name, agreed)
    return agreed


def _check_canary(name: str, canary: str, agreed: Agreement) -> None:
    """Raise ConfigurationError unless it is another version, of the same pixels."""
    version = agreed.versions[canary]
    if version is not None and version == agreed.versions[name]:
        raise ConfigurationError(
            f"members: {name!r}: canary: version {version} is what the member has itself; give the member the "
            "`version` that the other images stay with"
        )
    if agreed.preprocessing[canary] != agreed.preprocessing[name]:
        raise ConfigurationError(
            f"members: {name!r}: canary: its version wants other pixels; make it a member with `role: shadow`"
        )


def _agreed(what: str, values: Mapping[str, T | None]) -> T | None:
    """The value that every member that has one has; raises ConfigurationError, by name, if they differ."""
    given = {name: value for name, value in values.items() if value is not None}
    first = next(iter(given), None)
    for name, value in given.items():
        if first is not None and value != given[first]:
            raise ConfigurationError(
                f"members {first!r} and {name!r} disagree on the {what}: {given[first]} and {value}"
            )
    return given[first] if first is not None else None


def _preprocessing(name: str, signatures: Mapping[str, Signature], config: TransformerConfig) -> Wanted:
    """What a member wants: by the transformer's configuration, else by what it tells, else as the others want it."""
    told = signatures[name]
    if told.as_sent:
        return AsSent()
    ratios = {told.crop_ratio for told in signatures.values() if told.crop_ratio is not None}
    ratio = config.crop_ratio or told.crop_ratio or (ratios.pop() if len(ratios) == 1 else None)
    return Preprocessing(
        _size(name, signatures, config),
        ratio or 1.0,
        told.resize or "crop",
        told.interpolation or "area",
        told.border or (0, 0, 0),
    )


def _size(name: str, signatures: Mapping[str, Signature], config: TransformerConfig) -> Size:
    own = signatures[name].size
    if config.size is not None:
        if own not in {None, config.size}:
            raise ConfigurationError(f"transformer.size: {config.size}, but member {name!r} takes {own}")
        return config.size
    if own is not None:
        return own
    sizes = {told.size for told in signatures.values() if told.size is not None}
    if not sizes:
        raise ConfigurationError("transformer.size: no member fixes its input size, so the transformer must")
    if len(sizes) > 1:
        raise ConfigurationError(
            f"transformer.size: member {name!r} takes any size and the others differ: {sorted(sizes)}; "
            "prepare it again with the --size that it shall take"
        )
    return sizes.pop()
