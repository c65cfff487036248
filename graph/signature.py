"""What the members must agree on, and the pixels that each of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberInterface, Signature
from deployments.contract.preprocessing import AsSent, MemberInput, Preprocessing, Size
from deployments.transformer.transformer import TransformerConfig
from ensemble_serving.answer import Version
from graph.schema import EnsembleConfig

T = TypeVar("T")


@dataclass(frozen=True)
class EnsembleSignature:
    """What holds for all members, and what each of them takes.

    Attributes:
        labels: the class names, in order of index.
        preprocessing: what each member takes, by name.
        versions: of the model of each, by name; None where its server could not be asked.
        voters: the members whose predictions are combined.
        identities: what decides the scores of each model in the vote besides the pixels, by name.
        unlabelled: the members that leave their labels open, where others name theirs.
        reordered: the members that have the labels in another order, which their answers don't have.
        sets_crop: see `MemberInterface`.
    """

    labels: tuple[str, ...]
    preprocessing: Mapping[str, MemberInput]
    versions: Mapping[str, Version | None]
    voters: tuple[str, ...]
    identities: Mapping[str, str]
    unlabelled: tuple[str, ...] = ()
    reordered: tuple[str, ...] = ()
    sets_crop: bool = False

    def interface(self, name: str) -> MemberInterface:
        """Return the interface that a member must have."""
        return MemberInterface(self.preprocessing[name], self.labels, self.sets_crop)

    @property
    def pixels(self) -> dict[str, str]:
        """The key of the pixels that each voter takes, by name."""
        return {name: self.preprocessing[name].key for name in self.voters}

    @property
    def wanted(self) -> dict[str, MemberInput]:
        """Every preprocessing once, by its key."""
        return {preprocessing.key: preprocessing for preprocessing in self.preprocessing.values()}


def resolve_signatures(config: EnsembleConfig) -> EnsembleSignature:
    """Read every member's signature, and compare them.

    Raises:
        ConfigurationError: a member can't be served, two of them differ in classes or labels, or a feature can't act.
    """
    signatures = {member.name: member.signature(config.model_repository) for member in config.nodes}
    named = {name: own.labels for name, own in signatures.items() if own.labels is not None}
    by_name = {member.name for member in config.nodes if member.matches_by_name}
    has_labels, labels = bool(named), _labels(signatures, named, by_name)
    agreed = EnsembleSignature(
        labels,
        {name: _preprocessing(name, signatures, config.transformer) for name in signatures},
        {name: each.version for name, each in signatures.items()},
        tuple(member.name for member in config.voters),
        # Read here, and not in the ingress, whose machine may have no model.
        {each.name: each.identity(config.model_repository) for each in config.nodes if each.has_say},
        tuple(name for name in signatures if has_labels and name not in named),
        tuple(name for name, own in named.items() if own != labels),
        config.transformer.crop_ratio is not None,
    )
    if refused := [str(fault) for fault in config.faults(agreed) if fault.is_refused]:
        raise ConfigurationError("; ".join(refused))
    return agreed


def _labels(
    signatures: Mapping[str, Signature], named: Mapping[str, tuple[str, ...]], by_name: Set[str]
) -> tuple[str, ...]:
    """Return the class names that the members share; numbers if no member names its classes."""
    classes = _agreed("number of classes", {name: each.classes for name, each in signatures.items()})
    labels = _agreed_labels(named, by_name)
    if classes is None and labels is None:
        raise ConfigurationError("members: none tells its classes; give a remote one `labels`, or start its server")
    if labels is not None and classes not in {None, len(labels)}:
        raise ConfigurationError(f"the models have {classes} classes but {len(labels)} labels")
    return labels or tuple(map(str, range(classes or 0)))


def _agreed(what: str, values: Mapping[str, T | None]) -> T | None:
    """Return the one value of the members that have a value; raises ConfigurationError if two differ."""
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return None
    first, agreed = next(iter(given.items()))
    for name, value in given.items():
        if value != agreed:
            raise ConfigurationError(f"members {first!r} and {name!r} disagree on the {what}: {agreed} and {value}")
    return agreed


def _agreed_labels(named: Mapping[str, tuple[str, ...]], by_name: Set[str]) -> tuple[str, ...] | None:
    """Return the labels that the members share; raises ConfigurationError if they have other classes.

    Args:
        named: the labels by member.
        by_name: the members whose labels may be in another order.
    """
    # A member that can't change its order decides for the others.
    first = next((name for name in named if name not in by_name), next(iter(named), None))
    if first is None:
        return None
    agreed = named[first]
    for name, own in named.items():
        if own == agreed or (set(own) == set(agreed) and name in by_name):
            continue
        differing = sorted(set(own) ^ set(agreed))
        what = f"disagree on the labels, as {differing[0]!r}" if differing else "have the labels in another order"
        raise ConfigurationError(
            f"members {first!r} and {name!r} {what} ({len(agreed)} and {len(own)} classes): leave one of them out, or "
            "give both the same classes, by `ensemble labels` if only names differ, or by training"
        )
    return agreed


def _preprocessing(name: str, signatures: Mapping[str, Signature], config: TransformerConfig) -> MemberInput:
    """Choose a member's input by the transformer's configuration, its own signature, or the other members'."""
    own = signatures[name]
    if own.as_sent:
        return AsSent()
    ratios = {each.crop_ratio for each in signatures.values() if each.crop_ratio is not None}
    ratio = config.crop_ratio or own.crop_ratio or (ratios.pop() if len(ratios) == 1 else None)
    return Preprocessing(
        _size(name, signatures, config),
        ratio or 1.0,
        own.resize or "crop",
        own.interpolation or "area",
        own.border or (0, 0, 0),
    )


def _size(name: str, signatures: Mapping[str, Signature], config: TransformerConfig) -> Size:
    own = signatures[name].size
    if config.size is not None and own not in {None, config.size}:
        raise ConfigurationError(f"transformer.size: {config.size}, but member {name!r} takes {own}")
    if (size := config.size or own) is not None:
        return size
    sizes = {each.size for each in signatures.values() if each.size is not None}
    if not sizes:
        raise ConfigurationError("transformer.size: no member fixes its input size, so the transformer must")
    if len(sizes) > 1:
        raise ConfigurationError(
            f"transformer.size: member {name!r} takes any size and the others differ: {sorted(sizes)}; "
            "prepare it again with the --size that it shall take"
        )
    return sizes.pop()
