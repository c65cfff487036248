"""Milliseconds of an image by framework and precision, and the bundled models' accuracy over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from deployments.cpus import available_cpus
from ensemble_models.check.served import ask
from ensemble_models.dataset import Dataset
from lab import reported
from lab.benchmark.systems import OURS, URLS, running
from lab.benchmark.workloads import Precision, workload
from lab.experiments.engines import ENGINES, NETWORKS, Worker, together
from lab.experiments.experiment import declared, labelled
from lab.pictures import Bar, Groups
from lab.rows import Part, Row, Rows

PROTOCOLS = {"HTTP": "http", "gRPC": "grpc"}
# The names on the page, and the members; None for all together.
BUNDLED = {"bundled ResNet": "resnet", "bundled DenseNet": "densenet", "both bundled models": None}
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
# The newest instructions that oneDNN may use: AVX-512 as Skylake had it, before VNNI.
CAPPED = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
# The ways to compute a network: engine, precision and environment. One network alone is computed without VNNI.
WAYS: dict[str, tuple[str, Precision, Mapping[str, str]]] = {
    "PyTorch, float32": ("PyTorch", "float32", {}),
    "ONNX Runtime, float32": ("ONNX Runtime", "float32", {}),
    "OpenVINO, float32": ("OpenVINO", "float32", {}),
    "OpenVINO, float32, without VNNI": ("OpenVINO", "float32", CAPPED),
    "OpenVINO, int8": ("OpenVINO", "int8", {}),
    "OpenVINO, int8, without VNNI": ("OpenVINO", "int8", CAPPED),
}
CAPPED_NETWORK = "ResNet-50"
CLIENTS, ROUNDS = 28, 3


def parts(seconds: float) -> Sequence[Part]:
    """Make parts of the served models' answers, and of each network by each engine."""
    data = labelled()
    # Their servers come first: what the engines below hold in memory is not theirs.
    made = [Part(f"served in {each}", partial(served, each, data)) for each in PRECISIONS]
    for network, (way, (engine, precision, environment)) in product(NETWORKS, WAYS.items()):
        if not environment or network == CAPPED_NETWORK:
            worker = Worker(partial(ENGINES[engine], network, precision), available_cpus())
            measure = partial(in_rounds, worker, seconds, environment)
            made.append(Part(f"{network}, {way}", measure, {"model": network, "way": way}))
    return made


def in_rounds(worker: Worker, seconds: float, environment: Mapping[str, str]) -> Iterator[Row]:
    """Measure one client's latency, in twice the time, and the images per second of many clients, in each round."""
    for _ in range(ROUNDS):
        [alone] = together([worker], 2 * seconds, **environment)
        [crowded] = together([replace(worker, clients=CLIENTS)], seconds, **environment)
        requests = round(2 * seconds * alone["images_per_s"])
        yield {"requests": requests, "ms": alone["ms"], "images_per_s": crowded["images_per_s"]}


def served(precision: Precision, data: Dataset) -> Iterator[Row]:
    """Measure the top-1 of each bundled model and of both in percent, by protocol, as a running server answers."""
    with running(OURS["colocated"], workload("embedded", precision)):
        answers = {name: ask(URLS[protocol], data, CLIENTS) for name, protocol in PROTOCOLS.items()}
    for name, member in BUNDLED.items():
        top1 = {protocol: 100 * float(each.of(member)[1].mean()) for protocol, each in answers.items()}
        yield {"model": name, "way": f"OpenVINO, {precision}", "top1": top1}


def joined(rows: Rows) -> Rows:
    """Put the accuracy of a model beside its times."""
    found: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: "top1" in row):
        found.setdefault((row["model"], row["way"]), {}).update(row)
    return list(found.values())


def picture(rows: Rows) -> Groups:
    """Draw the latencies, reported and here."""
    here, groups = PRECISION.compare(rows), []
    for each in reported.of("precision"):
        if each.unit == "ms" and each.value and (told := here.get(each.subject)):
            bars = Bar("reported", each.value, each.text), Bar("here", PRECISION.value(each.subject, rows), told, True)
            groups.append((each.subject, bars))
    return groups


def timed(rows: Rows) -> Rows:
    """Leave out the accuracies, which stand beside the reported ones."""
    return [row for row in rows if "top1" not in row]


PRECISION = declared("precision", parts=parts, picture=picture, shown=joined, tabled=timed)
