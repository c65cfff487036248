"""Metrics, through Serve's own.

Ray exports them to Prometheus with the prefix `ray_`, each tagged with the application, the deployment and the replica.
Names and units: https://prometheus.io/docs/practices/naming/. Ray adds `_total` to a counter's name.
"""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import psutil
from ray.serve.metrics import Counter, Gauge, Histogram

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.nodes import Remote, Swappable, Versioned

SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
SIZES = [1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
STATE_INTERVAL_S = 5.0


def tag_keys(*names: str) -> Any:
    """The names of a metric's tags, as Ray takes them; it annotates a tuple of one."""
    return names


class Metrics:
    """What the ingress counts of requests and of batches."""

    def __init__(self) -> None:
        """Register every metric."""
        self._requests = Counter(
            "ensemble_requests", description="Requests answered.", tag_keys=tag_keys("protocol", "outcome")
        )
        self._request_duration = Histogram(
            "ensemble_request_duration_seconds",
            description="Time from a request's arrival at the ingress to its answer.",
            boundaries=SECONDS,
            tag_keys=tag_keys("protocol"),
        )
        self._refusals = Counter("ensemble_admission_refusals", description="Requests refused because it was full.")
        self._queue_wait = Histogram(
            "ensemble_queue_wait_seconds",
            description="Time from an image's arrival to its batch's departure; of each batch, the longest.",
            boundaries=SECONDS,
        )
        self._batch_size = Histogram("ensemble_batch_size", description="Images in a batch.", boundaries=SIZES)
        self._stage_duration = Histogram(
            "ensemble_stage_duration_seconds",
            description="Time that a node worked on a batch.",
            boundaries=SECONDS,
            tag_keys=tag_keys("stage"),
        )
        self._predictions = Counter(
            "ensemble_predictions",
            description="Images by the ensemble's most probable class.",
            tag_keys=tag_keys("label"),
        )
        self._degraded = Counter(
            "ensemble_degraded_answers",
            description="Images answered without a member, by the code of its error.",
            tag_keys=tag_keys("member", "reason"),
        )
        self._exits = Counter(
            "ensemble_cascade_exits",
            description="Images by the last member that the cascade asked.",
            tag_keys=tag_keys("member"),
        )
        self._eased = Counter(
            "ensemble_cascade_eased", description="Images that fewer members were asked of because of the load."
        )
        self._votes = Counter(
            "ensemble_member_predictions",
            description="Images by whether a member's most probable class was the ensemble's.",
            tag_keys=tag_keys("member", "agrees"),
        )

    def request(self, protocol: str, outcome: str, seconds: float) -> None:
        """Count a request by its protocol and its outcome: `ok`, `cancelled` or an error's code."""
        self._requests.inc(tags={"protocol": protocol, "outcome": outcome})
        self._request_duration.observe(seconds, tags={"protocol": protocol})
        if outcome == "overloaded":
            self._refusals.inc()

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float, of_ensemble: bool = True) -> None:
        """Count a batch that is back, whose image that came first waited so long, and if it has them its answers."""
        self._batch_size.observe(len(batch.items))
        # Ray counts nothing that is not above zero.
        self._queue_wait.observe(max(queue_wait_s, 1e-9))
        notes = {id(step.note): step.note for item in batch.items for step in item.steps}
        for note in notes.values():
            self._stage_duration.observe(max(note.end_ns - note.start_ns, 1) / 1e9, tags={"stage": note.node})
        if not of_ensemble:
            return
        answered = [(batch.items[i], a.classification) for i, a in zip(batch.live, batch.payload, strict=True)]
        for label, count in Tally(answer.label for _, answer in answered).items():
            self._predictions.inc(count, tags={"label": label})
        missing = Tally(pair for item, _ in answered for pair in item.missing.items())
        for (name, reason), count in missing.items():
            self._degraded.inc(count, tags={"member": name, "reason": reason})
        if eased := sum(item.eased for item, _ in answered):
            self._eased.inc(eased)
        for name, count in Tally(item.asked[-1] for item, _ in answered if item.asked).items():
            self._exits.inc(count, tags={"member": name})
        votes = Tally(
            (name, vote.index == answer.index) for item, answer in answered for name, vote in item.votes.items()
        )
        for (name, agrees), count in votes.items():
            self._votes.inc(count, tags={"member": name, "agrees": str(agrees).lower()})


class Connected(Protocol):
    """A way to a separate node."""

    @property
    def connections(self) -> int:
        """How many are open."""
        ...


class EdgeMetrics:
    """What the ingress counts of its calls to separate nodes."""

    def __init__(self) -> None:
        """Register the metric."""
        self._calls = Counter(
            "ensemble_edge_calls",
            description="Batches sent to a separate node, by the way they went.",
            tag_keys=tag_keys("node", "edge"),
        )

    def count(self, node: str, edge: str) -> None:
        """Count a call: `direct` or by `handle`."""
        self._calls.inc(tags={"node": node, "edge": edge})


def report_state(nodes: Mapping[str, Any], edges: Mapping[str, Connected] | None = None) -> None:
    """Report a process' CPU seconds and memory, its members' versions and its open connections, from a thread.

    Again and again, because Ray exports a gauge only while it is being set.

    Args:
        nodes: by name, those of this process.
        edges: by the name of a separate node, the way to it, which knows how many connections are open.
    """
    opened = Gauge("ensemble_edge_connections", description="Open connections to a node.", tag_keys=tag_keys("node"))
    cpu = Counter("ensemble_process_cpu_seconds", description="CPU time of the node's process, user and system.")
    memory = Gauge("ensemble_process_resident_memory_bytes", description="Resident memory of the node's process.")
    version = Gauge("ensemble_member_version", description="A member's model version.", tag_keys=tag_keys("member"))
    refusals = Counter(
        "ensemble_model_refused",
        description="Versions of a member's model that were refused; the one before went on.",
        tag_keys=tag_keys("member"),
    )
    addresses = Gauge(
        "ensemble_remote_addresses",
        description="Addresses of a member's server, by whether they are asked or left alone.",
        tag_keys=tag_keys("member", "state"),
    )
    remote = [node for node in nodes.values() if isinstance(node, Remote)]
    swappable = [node for node in nodes.values() if isinstance(node, Swappable)]
    versioned = [node for node in nodes.values() if isinstance(node, Versioned)]

    def report() -> None:
        reported = 0.0
        refused: Tally[str] = Tally()
        process = psutil.Process()
        while True:
            if (used := time.process_time()) > reported:
                cpu.inc(used - reported)
                reported = used
            memory.set(process.memory_info().rss)
            for node in versioned:
                # What another server calls a version need not be a number.
                if str(node.version).isdecimal():
                    version.set(int(node.version), tags={"member": node.name})
            for each in swappable:
                if each.refused > refused[each.name]:
                    refusals.inc(each.refused - refused[each.name], tags={"member": each.name})
                    refused[each.name] = each.refused
            for member in remote:
                for state, count in zip(("asked", "left_alone"), member.addresses(), strict=True):
                    addresses.set(count, tags={"member": member.name, "state": state})
            for name, edge in (edges or {}).items():
                opened.set(edge.connections, tags={"node": name})
            time.sleep(STATE_INTERVAL_S)

    threading.Thread(target=report, name="metrics", daemon=True).start()


def again_and_again(report: Callable[[], None], name: str) -> None:
    """From a thread, because Ray exports a gauge only while it is being set."""

    def forever() -> None:
        while True:
            report()
            time.sleep(STATE_INTERVAL_S)

    threading.Thread(target=forever, name=name, daemon=True).start()
