"""Metrics, by Ray Serve's API.

Ray exports them to Prometheus with the prefix `ray_`, each tagged with the application and the deployment; gauges have
the replica, too.
Names and units: https://prometheus.io/docs/practices/naming/. Ray adds `_total` to a counter's name.
"""

import logging
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import psutil
from ray.serve.metrics import Counter, Gauge, Histogram

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.counting import COUNTERS, TaggedCounter, Tags
from deployments.contract.nodes import Remote, Versioned
from deployments.cpus import node_cpus

logger = logging.getLogger("ray.serve")

SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
SIZES = [1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
STATE_INTERVAL_S, COUNTERS_INTERVAL_S = 5.0, 1.0


class TaggedGauge:
    """A gauge for Prometheus."""

    def __init__(self, name: str, description: str, *tags: str) -> None:
        self._tags = Tags(tags)
        self._gauge = Gauge(name, description=description, tag_keys=self._tags.keys)

    def set(self, number: float, *values: str | bool) -> None:
        """Set the number for these values of the tags, in order."""
        self._gauge.set(number, tags=self._tags.written(values))


class TaggedHistogram:
    """A histogram for Prometheus."""

    def __init__(self, name: str, description: str, boundaries: list[float], *tags: str) -> None:
        self._tags = Tags(tags)
        self._histogram = Histogram(name, description=description, boundaries=boundaries, tag_keys=self._tags.keys)

    def observe(self, number: float, *values: str | bool) -> None:
        """Note a number for these values of the tags, in order."""
        # Ray's histograms ignore zero.
        self._histogram.observe(max(number, 1e-9), tags=self._tags.written(values))


class Metrics:
    """The ingress's metrics of requests and batches."""

    def __init__(self) -> None:
        self._requests = TaggedCounter(
            "ensemble_requests", "Requests by outcome: ok, cancelled, or the code of an error.", "protocol", "outcome"
        )
        self._request_duration = TaggedHistogram(
            "ensemble_request_duration_seconds",
            "Time from a request's arrival at the ingress to its answer.",
            SECONDS,
            "protocol",
        )
        self._refusals = TaggedCounter(
            "ensemble_admission_refusals", "Requests refused at the in-flight limit, or for lack of decoding memory."
        )
        self._queue_wait = TaggedHistogram(
            "ensemble_queue_wait_seconds",
            "Longest wait of an image in the queue, per batch.",
            SECONDS,
        )
        self._batch_size = TaggedHistogram("ensemble_batch_size", "Images in a batch.", SIZES)
        self._stage_duration = TaggedHistogram(
            "ensemble_stage_duration_seconds", "Time that a node worked on a batch.", SECONDS, "stage"
        )
        self._predictions = TaggedCounter(
            "ensemble_predictions", "Images by the ensemble's most probable class.", "label"
        )
        self._degraded = TaggedCounter(
            "ensemble_degraded_answers",
            "Images answered without a member, by the code of its error.",
            "member",
            "reason",
        )
        self._member_predictions = TaggedCounter(
            "ensemble_member_predictions",
            "Images by whether a member's most probable class was the ensemble's.",
            "member",
            "agrees",
        )

    def request(self, protocol: str, outcome: str, seconds: float) -> None:
        """Count a request by its protocol and its outcome: `ok`, `cancelled` or an error's code."""
        self._requests.add(protocol, outcome)
        self._request_duration.observe(seconds, protocol)
        if outcome == "overloaded":
            self._refusals.add()

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float, of_ensemble: bool = True) -> None:
        """Count an answered batch, the wait of the image that waited longest, seconds, and the ensemble's answers."""
        self._batch_size.observe(len(batch.items))
        self._queue_wait.observe(queue_wait_s)
        for note in batch.notes:
            self._stage_duration.observe((note.end_ns - note.start_ns) / 1e9, note.node)
        if of_ensemble:
            self._count_answers(batch)

    def _count_answers(self, batch: Batch[Sequence[Answer]]) -> None:
        """Count what the ensemble and its members answered."""
        for position, each in zip(batch.live, batch.payload, strict=True):
            item, answer = batch.items[position], each.classification
            self._predictions.add(answer.label)
            for missing in item.missing.items():
                self._degraded.add(*missing)
            for name, given in item.predictions.items():
                self._member_predictions.add(name, given.index == answer.index)


class CounterReport:
    """Reports the counters of this process to Prometheus; Ray takes 20 µs for each number, so not with each count."""

    def __init__(self) -> None:
        self._known: dict[TaggedCounter, Counter] = {}

    def __call__(self) -> None:
        """Report the new counts."""
        for each in list(COUNTERS):
            if each not in self._known:
                self._known[each] = Counter(each.name, description=each.description, tag_keys=each.tags.keys)
            for tags, count in each.unreported():
                self._known[each].inc(count, tags=tags)


class StateReport:
    """Reports a process' CPU seconds and memory, its members' versions and addresses, and its open connections."""

    def __init__(self, nodes: Mapping[str, Any], edges: Mapping[str, Any] | None = None) -> None:
        """Set this process' nodes by name, and by the name of a separate node its client, which has `connections`."""
        self._nodes, self._edges = nodes.values(), edges or {}
        self._process, self._used_s, self._refused = psutil.Process(), 0.0, Tally[str]()
        self._opened = TaggedGauge("ensemble_edge_connections", "Open connections to a node.", "node")
        self._cpu = Counter("ensemble_process_cpu_seconds", "CPU time of the node's process, user and system.")
        self._cpus = TaggedGauge("ensemble_machine_cpus", "CPUs that the nodes of the machine share, within its quota.")
        self._memory = TaggedGauge("ensemble_process_resident_memory_bytes", "Resident memory of the node's process.")
        self._version = TaggedGauge("ensemble_member_version", "A member's model version.", "member")
        self._refusals = TaggedCounter(
            "ensemble_model_refused",
            "Versions of a member's model that were refused; the current one stayed in service.",
            "member",
        )
        self._addresses = TaggedGauge(
            "ensemble_remote_addresses",
            "Addresses of a member's server: asked, or left_alone because they are ejected.",
            *("member", "state"),
        )

    def __call__(self) -> None:
        """Report."""
        before, self._used_s = self._used_s, time.process_time()
        if self._used_s > before:
            self._cpu.inc(self._used_s - before)
        self._cpus.set(node_cpus())
        self._memory.set(self._process.memory_info().rss)
        for name, edge in self._edges.items():
            self._opened.set(edge.connections, name)
        for node in self._nodes:
            if isinstance(node, Versioned):
                self._report_version(node)
            if isinstance(node, Remote):
                for state, count in zip(("asked", "left_alone"), node.addresses(), strict=True):
                    self._addresses.set(count, node.name, state)

    def _report_version(self, node: Versioned) -> None:
        # A remote server's version need not be a number.
        if str(node.version).isdecimal():
            self._version.set(int(node.version), node.name)
        refused = getattr(node, "refused", 0)
        self._refusals.add(node.name, count=refused - self._refused[node.name])
        self._refused[node.name] = refused


@cache
def report_counters() -> None:
    """Report the counters of this process from now on."""
    report_periodically(CounterReport(), "counters", COUNTERS_INTERVAL_S)


def report_periodically(report: Callable[[], None], name: str, every_s: float | None = None) -> None:
    """Report from a thread, because Ray exports a gauge only while it is set again and again."""

    def forever() -> None:
        while True:
            try:
                report()
            except Exception:
                logger.exception("%s: not reported this time", name)
            time.sleep(every_s or STATE_INTERVAL_S)

    threading.Thread(target=forever, name=name, daemon=True).start()
