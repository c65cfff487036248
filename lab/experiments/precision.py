"""Milliseconds of an image by framework and precision, and the bundled models' accuracy over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, running
from lab.benchmark.workloads import Precision, photographs, workload
from lab.experiments.engines import Engine, Network, timed
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, beside
from lab.experiments.ladder import labelled
from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.served import ask
from scripts.results import Table

CLIENTS = 28
URLS = {"HTTP": f"http://127.0.0.1:{HTTP_PORT}", "gRPC": f"grpc://127.0.0.1:{GRPC_PORT}"}
NETWORKS = (
    Network("ResNet-50", "imagenet", "resnet"),
    Network("DenseNet-169", "imagenet", "densenet"),
    Network("bundled ResNet", "embedded", "resnet"),
    Network("bundled DenseNet", "embedded", "densenet"),
)
BOTH = "both bundled models"
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
TORCH, ONNX, OPENVINO = "PyTorch, float32", "ONNX Runtime, float32", {each: f"OpenVINO, {each}" for each in PRECISIONS}
NEEDED = ("torch", "torchvision", "onnxscript", "onnxruntime", "nncf")
HEADINGS = (
    "model",
    "computed by",
    "one client, ms",
    f"{CLIENTS} clients, images/s",
    "top-1 over HTTP, %",
    "top-1 over gRPC, %",
)


def check() -> None:
    """Raise ScriptError if a package or the images are missing."""
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        raise ScriptError(f"{', '.join(lacking)} missing: make train, or pip install '.[train,quantize,onnxruntime]'")
    labelled()
    photographs("large")


def measure(seconds: float) -> Sequence[Part]:
    """What the served models answer, and each network by each engine."""
    data = labelled()
    # Their servers come first: what the engines below hold in memory is not theirs.
    parts = [Part(f"served in {each}", partial(served, each, data)) for each in PRECISIONS]
    for network in NETWORKS:
        engines: dict[str, Callable[[], Engine]] = {TORCH: network.pytorch, ONNX: network.onnxruntime}
        engines |= {way: partial(network.openvino, precision) for precision, way in OPENVINO.items()}
        for way, engine in engines.items():
            key = {"model": network.name, "way": way}
            parts.append(Part(", ".join(key.values()), partial(times, engine, seconds), key))
    return parts


def times(engine: Callable[[], Engine], seconds: float) -> Iterator[dict[str, float]]:
    """What one client waits, and how many images many get."""
    made = engine()
    yield {"ms": timed(made, 1, seconds)[0], "images_per_s": timed(made, CLIENTS, seconds)[1]}


def joined(rows: Rows) -> dict[tuple[str, str], dict[str, Any]]:
    """The figures of each model by each way, those of the networks first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: "top1" in row):
        found.setdefault((row["model"], row["way"]), {}).update(row)
    return found


def served(precision: Precision, data: Dataset) -> Iterator[dict[str, Any]]:
    """The top-1 of each bundled model and of both in percent, by protocol, as a running server answers."""
    with running(OURS["colocated"], workload("embedded", precision)):
        answers = {protocol: ask(url, data, CLIENTS) for protocol, url in URLS.items()}
    bundled = {each.name: each.member for each in NETWORKS if each.load == "embedded"}
    for name in (*bundled, BOTH):
        top1 = {protocol: 100 * float(each.of(bundled.get(name))[1].mean()) for protocol, each in answers.items()}
        yield {"model": name, "way": OPENVINO[precision], "top1": top1}


def table(rows: Rows) -> Table:
    """A line for each row."""
    lines = []
    for row in joined(rows).values():
        speed = [f"{row['ms']:.2f}", f"{row['images_per_s']:.1f}"] if "ms" in row else ["", ""]
        accuracy = [f"{row['top1'][protocol]:.2f}" if "top1" in row else "" for protocol in URLS]
        lines.append([row["model"], row["way"], *speed, *accuracy])
    return Table(HEADINGS, lines, words=(0, 1))


def compare(rows: Rows) -> Mapping[str, Here]:
    """The latencies and OpenVINO's rates beside those of the same networks, the accuracy beside that of other ones."""
    by = joined(rows)
    found = {}
    for name in ("ResNet-50", "DenseNet-169"):
        framework = by[name, TORCH]
        what = f"latency of {name}, float32, in its framework"
        found[what] = _latency(framework, "PyTorch instead of TensorFlow, random weights, other cores")
        for precision, way in OPENVINO.items():
            found[f"latency of {name}, {precision}, OpenVINO"] = _latency(by[name, way], "random weights, other cores")
    for precision, way in OPENVINO.items():
        rate = by["ResNet-50", way]["images_per_s"]
        differs = f"ResNet-50 with {CLIENTS} clients in one process, other cores; the reported model is not recorded"
        found[f"images per second for many clients, {precision}"] = Here(rate, f"{rate:.1f} images/s", differs)
        for name in ("ResNet", "DenseNet"):
            found[f"top-1 of the {name}, {precision}"] = _accuracy(by[f"bundled {name}", way])
    found["top-1 of both, int8"] = _accuracy(by[BOTH, OPENVINO["int8"]])
    return found


def _latency(row: Mapping[str, Any], differs: str) -> Here:
    return Here(row["ms"], f"{row['ms']:.2f} ms", differs)


def _accuracy(row: Mapping[str, Any]) -> Here:
    told = ", ".join(f"{top1:.2f} % over {protocol}" for protocol, top1 in row["top1"].items())
    return Here(row["top1"]["HTTP"], told, "the bundled models on CIFAR-10, not ImageNet's")


def picture(rows: Rows) -> Groups:
    """The latencies, reported and here."""
    return beside("precision", compare(rows), "ms")


PRECISION = Experiment(
    "precision",
    "Milliseconds of an image with one client, reported and here; less is better",
    "ResNet-50 and DenseNet-169 at 224x224, bundled models at 32x32, one image per inference",
    check,
    measure,
    table,
    compare,
    picture,
    seconds=3.0,
    ascending=True,
)
