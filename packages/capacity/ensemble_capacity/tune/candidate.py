"""The settings that are tried, and the grid of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ensemble_capacity.plan.profile import Placement
from ensemble_capacity.plan.variant import placed, tuned
from ensemble_capacity.tune.form import AS_CONFIGURED, Form
from graph.defaults import share_of_threads

SIZES, WAITS_MS, IN_FLIGHT = (4, 8, 16, 32), (0.0, 2.0, 5.0), (1, 2)


@dataclass(frozen=True)
class Candidate:
    """Settings to try.

    Attributes:
        placement: of every node.
        ingresses: replicas of the ingress.
        nodes: replicas of each separate node that computes.
        threads: of each member; None for its share of the cores.
        max_batch_size: images.
        batch_wait_ms: of the ingress.
        max_concurrent_batches: of the ingress.
        streams: of each member; None for the configuration's, or else the fastest.
        form: what is served.
    """

    placement: Placement
    ingresses: int
    nodes: int
    threads: int | None
    max_batch_size: int
    batch_wait_ms: float
    max_concurrent_batches: int
    streams: int | None = None
    form: Form = AS_CONFIGURED

    @property
    def ingress(self) -> dict[str, Any]:
        """What it sets of the ingress."""
        names = ("max_batch_size", "batch_wait_ms", "max_concurrent_batches")
        return {name: getattr(self, name) for name in names}

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The Serve config with its settings."""
        moved = placed(self.form.config(config), self.placement, self.ingresses, self.nodes)
        return tuned(moved, threads=self.threads, streams=self.streams, ingress=self.ingress)

    def share(self, cores: int, members: int) -> int:
        """The threads of a member that leaves them open."""
        return share_of_threads(cores, members, self.ingresses if self.placement == "inline" else self.nodes)

    def __str__(self) -> str:
        """The candidate in words."""
        replicas = f"{self.ingresses}" if self.placement == "inline" else f"{self.ingresses} + {self.nodes} each"
        threads = "share" if self.threads is None else f"{self.threads}"
        streams = "" if self.streams is None else f", streams {self.streams}"
        waits = f"wait {self.batch_wait_ms:g} ms"
        batches = f"batch {self.max_batch_size}, {waits}, in flight {self.max_concurrent_batches}"
        form = "" if self.form.name == AS_CONFIGURED.name else f", {self.form.name}"
        return f"{self.placement}, replicas {replicas}, threads {threads}{streams}, {batches}{form}"


# The names that `--hold` takes.
HELD = [name for name in Candidate.__dataclass_fields__ if name != "form"]


def candidates(cores: int, fixed: Mapping[str, Any], members: int = 2, form: Form = AS_CONFIGURED) -> list[Candidate]:
    """The grid: every placement, batch, number of replicas and of threads that suits so many cores.

    Args:
        cores: of the machine.
        fixed: fields of a candidate that the user holds, by name.
        members: that compute on the cores.
        form: what is served.
    """
    replicas = sorted({1, 2, *(count for count in (4, 8) if count <= cores // 2)} & set(range(1, cores + 1)))
    grid: dict[str, Sequence[Any]] = {
        "placement": ("inline", "separate"),
        "ingresses": replicas,
        "nodes": replicas,
        "threads": (None, *sorted({1, cores})),
        "max_batch_size": SIZES,
        "batch_wait_ms": WAITS_MS,
        "max_concurrent_batches": IN_FLIGHT,
    }
    grid |= {name: (value,) for name, value in fixed.items()}
    found = (Candidate(**dict(zip(grid, each, strict=True)), form=form) for each in itertools.product(*grid.values()))
    return [each for each in found if _is_worth_it(each, cores, members, grid["nodes"][0], "threads" in fixed)]


def _is_worth_it(each: Candidate, cores: int, members: int, nodes: int, is_held: bool) -> bool:
    """Whether a candidate is no other one by another name, and has no more threads than cores."""
    if each.placement == "inline" and each.nodes != nodes:
        return False
    if each.threads is None or is_held:
        return True
    replicas = each.ingresses if each.placement == "inline" else each.nodes
    return each.threads != each.share(cores, members) and each.threads * replicas <= cores


def variants(candidate: Candidate, forms: Sequence[Form], streams: Sequence[int]) -> Iterator[Candidate]:
    """The candidate in each form, and with each number of streams; itself is not among them."""
    for form, count in itertools.product(forms, (candidate.streams, *streams)):
        changed = replace(candidate, form=form, streams=count)
        if changed != candidate:
            yield changed
