"""Milliseconds of an image by framework and precision, and the bundled models' accuracy over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from tqdm import tqdm

from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.served import ask
from scripts.lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, running
from scripts.lab.benchmark.workloads import MEMBERS, Precision, photographs, workload
from scripts.lab.experiments.engines import Engine, Network, timed
from scripts.lab.experiments.experiment import Experiment, Groups, Here, Rows, beside
from scripts.lab.experiments.ladder import labelled
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


def measure(seconds: float) -> Rows:
    """Each network by each engine, and what the served models answer."""
    data = labelled()
    # Their servers come first: what the engines below hold in memory is not theirs.
    found = {precision: served(precision, data) for precision in PRECISIONS}
    rows: Rows = []
    for network in tqdm(NETWORKS, unit="network"):
        engines = {TORCH: network.pytorch, ONNX: network.onnxruntime}
        for way, engine in engines.items():
            rows.append({"model": network.name, "way": way, **times(engine(), seconds)})
        for precision, way in OPENVINO.items():
            row = {"model": network.name, "way": way, **times(network.openvino(precision), seconds)}
            rows.append({**row, **({"top1": found[precision][network.member]} if network.load == "embedded" else {})})
    return [*rows, *({"model": BOTH, "way": OPENVINO[each], "top1": found[each]["ensemble"]} for each in PRECISIONS)]


def times(engine: Engine, seconds: float) -> dict[str, float]:
    """What one client waits, and how many images many get."""
    return {"ms": timed(engine, 1, seconds)[0], "images_per_s": timed(engine, CLIENTS, seconds)[1]}


def served(precision: Precision, data: Dataset) -> dict[str, dict[str, float]]:
    """The top-1 of each member and of the ensemble in percent, by protocol, as a running server answers."""
    found: dict[str, dict[str, float]] = {name: {} for name in (*MEMBERS, "ensemble")}
    with running(OURS["colocated"], workload("embedded", precision)):
        for protocol, url in URLS.items():
            answers = ask(url, data, CLIENTS)
            for name in found:
                right = answers.hits[None if name == "ensemble" else name]
                found[name][protocol] = 100 * right / answers.images
    return found


def table(rows: Rows) -> Table:
    """A line for each row."""
    lines = []
    for row in rows:
        speed = [f"{row['ms']:.2f}", f"{row['images_per_s']:.1f}"] if "ms" in row else ["", ""]
        accuracy = [f"{row['top1'][protocol]:.2f}" if "top1" in row else "" for protocol in URLS]
        lines.append([row["model"], row["way"], *speed, *accuracy])
    return Table(HEADINGS, lines, words=(0, 1))


def compare(rows: Rows) -> Mapping[str, Here]:
    """The latencies and OpenVINO's rates beside those of the same networks, the accuracy beside that of other ones."""
    by = {(row["model"], row["way"]): row for row in rows}
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
