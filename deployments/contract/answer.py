"""The answer for an image; its fields are those of the JSON answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from deployments.contract.item import Cached, Version
from deployments.contract.payload import Probabilities
from deployments.contract.timing import Timing

# Digits behind the point.
TOLD_DIGITS = 6


class ClassProbability(msgspec.Struct, frozen=True):
    """One class of an answer."""

    label: Annotated[str, Meta(description="the class' name")]
    index: Annotated[int, Meta(ge=0, description="its index")]
    probability: Annotated[float, Meta(ge=0, le=1, description="its probability, to six digits")]


class MemberAnswer(ClassProbability, frozen=True, omit_defaults=True, kw_only=True):
    """A member's own most probable class."""

    probabilities: Annotated[
        tuple[float, ...], Meta(description="the member's probability of each class in `top`, in that order")
    ] = ()


class Classification(ClassProbability, frozen=True, omit_defaults=True, kw_only=True):
    """The answer for one image: the most probable class by the members together, and what else was asked for."""

    top: Annotated[tuple[ClassProbability, ...], Meta(description="the top_k most probable classes, descending")]
    model_versions: Annotated[Mapping[str, Version], Meta(description="the version of each member that answered")]
    missing: Annotated[
        Mapping[str, str] | None,
        Meta(description="the error's code of each member that did not answer, if one did not"),
    ] = None
    asked: Annotated[
        tuple[str, ...] | None, Meta(description="the members that a cascade asked, in order, if there is a cascade")
    ] = None
    eased: Annotated[bool | None, Meta(description="true where a cascade asked fewer members because of the load")] = (
        None
    )
    cache: Annotated[
        Cached | None, Meta(description="whether what the members said was remembered, and for how long, seconds")
    ] = None
    trace_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="the W3C trace id of the request")]
    members: Annotated[
        Mapping[str, MemberAnswer] | None, Meta(description="each member's own most probable class, if asked for")
    ] = None
    timings: Annotated[tuple[Timing, ...] | None, Meta(description="where the time went, if asked for")] = None


class Answer(NamedTuple):
    """What the graph gives for one image: the classification, and the probability of every class, float32 [C]."""

    classification: Classification
    probabilities: Probabilities
