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
    """Whether the members' predictions for an image came from the cache."""

    hit: Annotated[bool, Meta(description="true if they did")]
    age_s: Annotated[float | None, Meta(description="the predictions' age, seconds; absent without a hit")] = None


class Rung(msgspec.Struct, frozen=True, omit_defaults=True):
    """The thresholds of a cascade that a request's `tolerance` chose, or `quality`."""

    number: Annotated[int, Meta(description="its place in the ladder; 0 calls all members")]
    loss: Annotated[float, Meta(description="bound of the top-1 lost against all members, points")]
    cost: Annotated[float, Meta(description="its mean inference cost divided by the cost of all members")]
    is_held: Annotated[
        bool | None,
        Meta(description="whether the audit holds the bound; false if a member is missing; absent if unknown"),
    ] = None


class Timing(msgspec.Struct, frozen=True):
    """The time of one step."""

    stage: Annotated[str, Meta(description="the step's name in traces, such as `decode`")]
    start_ms: Annotated[float, Meta(description="its start, ms since the image was queued")]
    duration_ms: Annotated[float, Meta(description="its duration, ms")]


class NodeCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cost of a node's work on an image; unknown figures are absent."""

    node: Annotated[str, Meta(description="the step's name in traces, such as `decode`; or `ingress`")]
    cpu_ms: Annotated[float | None, Meta(description="CPU time, ms; absent for a member on another server")] = None
    calling_cpu_ms: Annotated[
        float | None, Meta(description="this server's CPU time for the call of a member on another server, ms")
    ] = None
    bytes_in: Annotated[int | None, Meta(description="bytes of the node's input")] = None
    bytes_out: Annotated[int | None, Meta(description="bytes of the node's output")] = None


class Receipt(msgspec.Struct, frozen=True):
    """The cost of an answer: the image's equal share of each node's work on the batch."""

    batch_size: Annotated[int, Meta(description="the number of images in the batch")]
    position: Annotated[int, Meta(description="the image's position in the batch, from 0")]
    nodes: Annotated[tuple[NodeCost, ...], Meta(description="the nodes in order, and the ingress")]


class Classification(ClassProbability, frozen=True, omit_defaults=True, kw_only=True):
    """The answer for an image: the ensemble's most probable class, and requested details."""

    top: Annotated[tuple[ClassProbability, ...], Meta(description="the `top_k` most probable classes, descending")]
    model_versions: Annotated[Mapping[str, Version], Meta(description="the version of each member that answered")]
    missing: Annotated[
        Mapping[str, str] | None,
        Meta(description="the error code of each member that did not answer; absent if all members answered"),
    ] = None
    asked: Annotated[
        tuple[str, ...] | None, Meta(description="with a cascade: the members that it called, in order")
    ] = None
    load_shed: Annotated[
        bool | None, Meta(description="true if a cascade called fewer members because of the load")
    ] = None
    rung: Annotated[Rung | None, Meta(description="with a cascade's ladder: the rung that answered")] = None
    cache: Annotated[
        CacheStatus | None,
        Meta(description="with a cache: whether the members' predictions came from it"),
    ] = None
    warning: Annotated[
        str | None, Meta(description="the fault of an image's file that was classified nevertheless")
    ] = None
    trace_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="the W3C trace id of the request")]
    members: Annotated[
        Mapping[str, MemberAnswer] | None, Meta(description="each member's own most probable class, if requested")
    ] = None
    timings: Annotated[tuple[Timing, ...] | None, Meta(description="the time of each step, if requested")] = None
    receipt: Annotated[Receipt | None, Meta(description="the answer's CPU time and bytes, if requested")] = None
    extras: Annotated[
        Mapping[str, Any] | None, Meta(description="fields that features of other packages add, by name")
    ] = None
