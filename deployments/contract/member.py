"""A member of the ensemble: what every kind of it is configured by, what it tells of itself, and how it is made."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec
from pydantic import Field, model_validator

from deployments.contract.item import Version
from deployments.contract.nodes import Node
from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Color, Interpolation, Resize, Size, Wanted
from deployments.contract.rollout import SUFFIX, CanaryConfig
from deployments.contract.settings import Name, Placement, Schema, Weight
from models.sources import Where

# Of a member's fields those that its scores don't depend on.
UNDECISIVE = {"weight", "placement", "deployment", "canary", "role", "share", "replaces"}
TOLD = ("crop_ratio", "resize", "interpolation", "border")


class Signature(msgspec.Struct, frozen=True):
    """What a member takes and gives; None is what it leaves open.

    Attributes:
        classes: their number.
        version: of the model.
        labels: the classes' names, in order of index.
        size: height and width of its pixels.
        crop_ratio: see `Preprocessing`, as the next three.
        resize: likewise.
        interpolation: likewise.
        border: likewise.
        as_sent: whether it takes images as they were sent, and no pixels.
    """

    classes: int | None
    version: Version | None
    labels: tuple[str, ...] | None = None
    size: Size | None = None
    crop_ratio: float | None = None
    resize: Resize | None = None
    interpolation: Interpolation | None = None
    border: Color | None = None
    as_sent: bool = False


class Agreed(msgspec.Struct, frozen=True):
    """What a member has to do with: what it gets, and what the members have agreed on.

    Attributes:
        images: what it gets of an image.
        labels: the class names, in order of index; it answers a score for each.
    """

    images: Wanted
    labels: tuple[str, ...]


class MemberConfig(Schema):
    """What every kind of member has. A kind is a subclass in a file of `deployments/members`, and in their union."""

    kind: str
    name: Name = Field(description="its name in every answer")
    weight: Weight = Field(1.0, description="share in the combination, relative to the other members'")
    placement: Placement = Field("separate", description="a Serve deployment of its own, or its caller's process")
    deployment: Name | None = Field(None, description="name of its Serve deployment; default: the name")
    canary: CanaryConfig | None = Field(None, description="another version that answers a share of the images")
    role: Literal["member", "shadow"] = Field("member", description="a shadow gets copies, and has no say")
    share: float | None = Field(None, ge=0, le=1, description="of the images, that a shadow gets a copy of")
    replaces: Name | None = Field(
        None, description="the member that a shadow is compared with; default: the first one of the same model"
    )

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.role == "shadow":
            if self.share is None:
                raise ValueError("share: a shadow needs one, as 0.1")
            if self.canary is not None or "weight" in self.model_fields_set:
                raise ValueError("role: a shadow has no say, and so neither a weight nor a canary")
        elif self.share is not None or self.replaces is not None:
            raise ValueError("share, replaces: they belong to a shadow; say `role: shadow`")
        return self

    @property
    def deployment_name(self) -> str:
        """The name of its Serve deployment."""
        return self.deployment or self.name

    @property
    def operation(self) -> str:
        """What a trace calls its work."""
        return f"predict {self.name}"

    def trial(self) -> Self | None:
        """Its canary, as a member of its own; None if it has none.

        Raises:
            ValidationError: its kind does not have such a version.
        """
        if self.canary is None:
            return None
        own = {
            "name": f"{self.name}{SUFFIX}",
            "model": self.model_name,
            "version": self.canary.version,
            "deployment": f"{self.deployment_name}{SUFFIX}",
            "canary": None,
        }
        return type(self).model_validate({**self.model_dump(), **own})

    @property
    def model_name(self) -> str:
        """What the model is called where it is."""
        return getattr(self, "model", None) or self.name

    def signature(self, repository: Where) -> Signature:
        """What the member tells of itself.

        Args:
            repository: the application's model repository.

        Raises:
            ConfigurationError: it can't be served.
        """
        raise NotImplementedError

    def identity(self, repository: Where) -> str:
        """What decides its scores besides the pixels, as text; a cache keeps apart what differs in it.

        Args:
            repository: the application's model repository.

        Raises:
            ConfigurationError: it can't be served.
        """
        return self.model_dump_json(exclude=UNDECISIVE)

    def make(self, repository: Where, agreed: Agreed, max_batch_size: int) -> Node[Any, Probabilities]:
        """The node, made in the process where it is to run.

        Args:
            repository: the application's model repository.
            agreed: what it will get, and the classes that it must answer.
            max_batch_size: the most images that it will get at once.

        Raises:
            ConfigurationError: it can't be served.
        """
        raise NotImplementedError


def told(metadata: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Signature` that the `input` entry of a model's `metadata.json` tells.

    Raises:
        msgspec.ValidationError: one of them has a wrong type or value.
    """
    known: dict[str, Any] = {name: metadata[name] for name in TOLD if name in metadata}
    signature: dict[str, Any] = {"classes": 1, "version": 1, **known}
    checked = msgspec.convert(signature, Signature, strict=False)
    return {name: getattr(checked, name) for name in known}
