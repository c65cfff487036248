"""The answer for an image, with the fields of the JSON answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

# A local model's version is a number, a remote server's what it calls it.
Version = int | str


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


class CacheStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether what the members said of an image was remembered, and since when.

    Attributes:
        hit: whether it was.
        age_s: for how long, seconds; None if it was not.
    """

    hit: bool
    age_s: float | None = None


class Timing(msgspec.Struct, frozen=True):
    """The time of one stage."""

    stage: Annotated[str, Meta(description="the name of the stage in traces, such as `decode`")]
    start_ms: Annotated[float, Meta(description="when it began, ms since the image began to wait for its batch")]
    duration_ms: Annotated[float, Meta(description="how long it took, ms")]


class NodeCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node took for an image; what is not known is left out."""

    node: Annotated[str, Meta(description="what it did, as a trace calls it, such as `decode`; or `ingress`")]
    cpu_ms: Annotated[float | None, Meta(description="CPU time, ms; not of a member on another server")] = None
    calling_cpu_ms: Annotated[
        float | None, Meta(description="CPU time of calling a member on another server, on this side, ms")
    ] = None
    bytes_in: Annotated[int | None, Meta(description="what it was given, bytes")] = None
    bytes_out: Annotated[int | None, Meta(description="what it gave, bytes")] = None


class Receipt(msgspec.Struct, frozen=True):
    """What an answer cost: of each node's work on a batch, the image's equal share."""

    batch_size: Annotated[int, Meta(description="the images of its batch")]
    position: Annotated[int, Meta(description="its position among them, from 0 on")]
    nodes: Annotated[tuple[NodeCost, ...], Meta(description="the nodes in order, and the ingress")]


class Classification(ClassProbability, frozen=True, omit_defaults=True, kw_only=True):
    """The answer for an image: the ensemble's most probable class, and what else the request asked for."""

    top: Annotated[tuple[ClassProbability, ...], Meta(description="the top_k most probable classes, descending")]
    model_versions: Annotated[Mapping[str, Version], Meta(description="the version of each member that answered")]
    missing: Annotated[
        Mapping[str, str] | None,
        Meta(description="the error's code of each member that did not answer; absent if all did"),
    ] = None
    asked: Annotated[
        tuple[str, ...] | None, Meta(description="the members that a cascade called, in order, if there is a cascade")
    ] = None
    eased: Annotated[
        bool | None, Meta(description="true in a load-shed answer, for which a cascade called fewer members")
    ] = None
    cache: Annotated[
        CacheStatus | None,
        Meta(description="whether the members' predictions came from the cache, and their age, seconds"),
    ] = None
    warning: Annotated[
        str | None, Meta(description="what is odd about the image's file, which was classified all the same")
    ] = None
    trace_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="the W3C trace id of the request")]
    members: Annotated[
        Mapping[str, MemberAnswer] | None, Meta(description="each member's own most probable class, if requested")
    ] = None
    timings: Annotated[tuple[Timing, ...] | None, Meta(description="where the time went, if requested")] = None
    receipt: Annotated[Receipt | None, Meta(description="what the answer cost, if requested")] = None
    extras: Annotated[
        Mapping[str, Any] | None, Meta(description="fields that features of other packages add, by name")
    ] = None
