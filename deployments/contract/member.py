"""A member of the ensemble: the configuration that every kind has, its signature, and what its node does."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import Field

from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Color, CropRatio, Interpolation, MemberInput, Preprocessing, Resize, Size
from deployments.contract.sections import Extensible
from deployments.contract.settings import Name, Placement, Weight
from deployments.repository.address import RepositoryAddress
from deployments.repository.errors import ModelError
from deployments.repository.repository import METADATA
from ensemble_serving.answer import Version

# What a trace calls a member's work begins so; the member's name follows.
OPERATION = "predict "
# The fields of a member that its scores do not depend on; nor do they on features' fields.
UNDECISIVE = {"weight", "placement", "deployment"}
PREPROCESSING_FIELDS = ("crop_ratio", "resize", "interpolation", "border")


class Signature(msgspec.Struct, frozen=True):
    """What a member takes and gives; None for what it leaves open.

    Attributes:
        classes: the number of classes.
        version: of the model.
        labels: the classes' names, in order of index.
        size: height and width of its pixels; for the next four see `Preprocessing`.
        as_sent: whether it takes images as they were sent, and not pixels.
    """

    classes: int | None
    version: Version | None
    labels: tuple[str, ...] | None = None
    size: Size | None = None
    crop_ratio: CropRatio | None = None
    resize: Resize | None = None
    interpolation: Interpolation | None = None
    border: Color | None = None
    as_sent: bool = False


def class_order(own: Sequence[str] | None, agreed: Sequence[str]) -> list[int] | None:
    """Return the position of each of the ensemble's classes among a member's own; None if nothing changes.

    Raises:
        ValueError: the classes are others.
    """
    if own is None or not agreed or tuple(own) == tuple(agreed):
        return None
    return [list(own).index(label) for label in agreed]


class MemberInterface(msgspec.Struct, frozen=True):
    """The interface that a member must have.

    Attributes:
        images: the input that it gets.
        labels: the class names, in order of index; it answers a score for each.
        sets_crop: whether the configuration names the crop, whatever the models say of it.
    """

    images: MemberInput
    labels: tuple[str, ...]
    sets_crop: bool = False

    @property
    def size(self) -> Size:
        """Height and width of its pixels; only for a member that gets pixels."""
        assert isinstance(self.images, Preprocessing)
        return self.images.size


class MemberConfig(Extensible):
    """The configuration that every kind of member has. A kind is a subclass in `deployments/members`."""

    at: ClassVar[str] = "members"
    # Whether a member of this kind may have the ensemble's classes in another order, and answers in the ensemble's.
    matches_by_name: ClassVar[bool] = False

    kind: str
    name: Name = Field(description="the member's name in every answer")
    weight: Weight = Field(1.0, description="weight in the combination, relative to the other members'")
    placement: Placement = Field("separate", description="a Serve deployment of its own, or its caller's process")
    deployment: Name | None = Field(None, description="name of its Serve deployment; default: the name")

    @property
    def deployment_name(self) -> str:
        """The name of its Serve deployment."""
        return self.deployment or self.name

    @property
    def operation(self) -> str:
        """The name of its work in traces."""
        return f"{OPERATION}{self.name}"

    @property
    def has_say(self) -> bool:
        """Whether its predictions are combined; a model that runs beside the vote has none."""
        return all(self is not each for section in self.sections for each in section.beside(self))

    @property
    def model_name(self) -> str:
        """The model's name in its repository or on its server."""
        return getattr(self, "model", None) or self.name

    def signature(self, repository: RepositoryAddress) -> Signature:
        """Read what the member takes and gives.

        Raises:
            ConfigurationError: it can't be served.
        """
        raise NotImplementedError

    def identity(self, repository: RepositoryAddress) -> str:
        """Return as text everything besides the pixels that decides the member's scores.

        Raises:
            ConfigurationError: it can't be served.
        """
        return self.model_dump_json(exclude=UNDECISIVE)

    def make(
        self, repository: RepositoryAddress, agreed: MemberInterface, max_batch_size: int
    ) -> Node[Any, Probabilities]:
        """Make the node, in the process that it will run in; it gets at most `max_batch_size` images at once.

        Raises:
            ConfigurationError: it can't be served.
        """
        raise NotImplementedError


def preprocessing_fields(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Signature` that the entry `input` of a model's `metadata.json` has.

    Raises:
        ModelError: one of them has a wrong type or value.
    """
    known: dict[str, Any] = {name: metadata[name] for name in PREPROCESSING_FIELDS if name in metadata}
    signature: dict[str, Any] = {"classes": 1, "version": 1, **known}
    try:
        checked = msgspec.convert(signature, Signature, strict=False)
    except msgspec.ValidationError as err:
        raise ModelError(f"`input` in the model's {METADATA}: {err}") from err
    return {name: getattr(checked, name) for name in known}
