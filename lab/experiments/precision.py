"""Milliseconds of an image by framework and precision, and the bundled models' accuracy over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ensemble_models.check.served import ask
from ensemble_models.dataset import Dataset
from lab import reported
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, running
from lab.benchmark.workloads import Precision, workload
from lab.experiments.engines import CLIENTS, NETWORKS, figures
from lab.experiments.experiment import declared, labelled
from lab.pictures import Bar, Groups
from lab.rows import Part, Row, Rows

URLS = {"HTTP": f"http://127.0.0.1:{HTTP_PORT}", "gRPC": f"grpc://127.0.0.1:{GRPC_PORT}"}
BOTH = "both bundled models"
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
TORCH, ONNX, OPENVINO = "PyTorch, float32", "ONNX Runtime, float32", "OpenVINO, {}"
WITHOUT_VNNI = "OpenVINO, {}, without VNNI"
# The newest instructions that oneDNN may use: AVX-512 as Skylake had it, before VNNI.
CAPPED = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
ROUNDS = 3
# The networks whose times the document has.
TIMED = ("ResNet-50", "Inception v3")


def parts(seconds: float) -> Sequence[Part]:
    """Make parts of the served models' answers, and of each network by each engine."""
    data = labelled()
    # Their servers come first: what the engines below hold in memory is not theirs.
    made = [Part(f"served in {each}", partial(served, each, data)) for each in PRECISIONS]
    for network in TIMED:
        for way, (engine, precision, environment) in ways(network).items():
            measure = partial(in_rounds, network, engine, precision, seconds, environment)
            # One client has twice the seconds.
            key = {"model": network, "way": way}
            made.append(Part(f"{network}, {way}", measure, key))
    return made


def ways(network: str) -> dict[str, tuple[str, Precision, Mapping[str, str]]]:
    """List the engines that compute a network: each with a precision and its environment."""
    found: dict[str, tuple[str, Precision, Mapping[str, str]]] = {
        TORCH: ("PyTorch", "float32", {}),
        ONNX: ("ONNX Runtime", "float32", {}),
    }
    for each in PRECISIONS:
        found[OPENVINO.format(each)] = ("OpenVINO", each, {})
        if network == "ResNet-50":
            found[WITHOUT_VNNI.format(each)] = ("OpenVINO", each, CAPPED)
    return found


def in_rounds(
    network: str, engine: str, precision: Precision, seconds: float, environment: Mapping[str, str]
) -> Iterator[Row]:
    """Measure an engine once in each round."""
    for _ in range(ROUNDS):
        yield figures(network, engine, precision, seconds, **environment)


def served(precision: Precision, data: Dataset) -> Iterator[Row]:
    """Measure the top-1 of each bundled model and of both in percent, by protocol, as a running server answers."""
    with running(OURS["colocated"], workload("embedded", precision)):
        answers = {protocol: ask(url, data, CLIENTS) for protocol, url in URLS.items()}
    bundled = {each.name: each.member for each in NETWORKS if each.load == "embedded"}
    for name in (*bundled, BOTH):
        top1 = {protocol: 100 * float(each.of(bundled.get(name))[1].mean()) for protocol, each in answers.items()}
        yield {"model": name, "way": OPENVINO.format(precision), "top1": top1}


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


PRECISION = declared("precision", parts=parts, picture=picture, shown=joined)
