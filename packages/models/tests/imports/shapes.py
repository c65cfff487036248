"""Makes repositories and manifests of other servers, as their own documentation describes them, with small models."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import yaml

from ensemble_models.prepare.source import Normalization
from packages.models.tests.kinds.make import COLOURS, classifier, linear_onnx

LABELS = list(COLOURS)
IMAGENET = Normalization.usual("RGB", "imagenet")
# Blue first, and the mean and scale that OpenVINO Model Server is told.
BLUE_FIRST = Normalization("BGR", (0.5, 0.4, 0.3), (0.25, 0.2, 0.2))


def text(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(content))
    return file


def onnx(file: Path, way: Normalization = IMAGENET) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    linear_onnx(file, COLOURS, way)
    return file


def ir(file: Path, way: Normalization = IMAGENET, **more: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    ov.save_model(classifier(way=way, **more), file, compress_to_fp16=False)
    return file


def triton_one(root: Path) -> Path:
    """One ONNX model with labels, batches and a queue's bounds."""
    onnx(root / "repository/tint/3/model.onnx")
    text(root / "repository/tint/names.txt", "\n".join(LABELS))
    text(
        root / "repository/tint/config.pbtxt",
        """
        # A comment.
        name: "tint"  platform: "onnxruntime_onnx"
        max_batch_size: 8
        input [ { name: "input" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 8, 12 ] } ]
        output [ { name: "output" data_type: TYPE_FP32 dims: [ 7 ] label_filename: "names.txt" } ]
        version_policy: { specific: { versions: [ 3 ] } }
        instance_group [ { count: 2 kind: KIND_CPU } ]
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ]  max_queue_delay_microseconds: 500
          default_queue_policy { default_timeout_microseconds: 2000000 max_queue_size: 64 }
        }
        parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
        response_cache { enable: true }
        """,
    )
    return root / "repository"


def triton_ensemble(root: Path) -> Path:
    """An ensemble: Python decodes, two models of two backends answer side by side, Python averages."""
    for name, write, platform in (("left", onnx, "onnxruntime"), ("right", ir, "openvino")):
        write(root / name / "1" / ("model.onnx" if write is onnx else "model.xml"))
        text(
            root / name / "config.pbtxt",
            f'backend: "{platform}" max_batch_size: 16 '
            'input { name: "input" data_type: TYPE_FP32 dims: 3 dims: 8 dims: 12 format: FORMAT_NCHW } '
            "dynamic_batching {}",
        )
    for name in ("decode", "average", "unused"):
        text(root / name / "config.pbtxt", f'name: "{name}" backend: "python"')
        text(root / name / "1/model.py", "raise SystemExit('this must not run')")
    text(
        root / "together/config.pbtxt",
        """
        platform: "ensemble" max_batch_size: 16
        ensemble_scheduling { step [
          { model_name: "decode" model_version: -1 output_map { key: "pixels" value: "pixels" } },
          { model_name: "left" model_version: -1 input_map { key: "input" value: "pixels" } },
          { model_name: "right" model_version: -1 input_map { key: "input" value: "pixels" } },
          { model_name: "average" model_version: -1 } ] }
        """,
    )
    return root


def model_server_pipeline(root: Path) -> Path:
    """Two models whose pixels the server normalizes, and a pipeline behind a library's node."""
    ir(root / "tint/1/model.xml", BLUE_FIRST, layout="NHWC")
    ir(root / "shade/1/model.xml")
    pixels = {"mean": "[127.5, 102, 76.5]", "scale": "[63.75, 51, 51]", "color_format": "BGR:RGB"}
    names = ["tint", "shade"]
    nodes = [{"name": "decode", "type": "custom", "library_name": "decoder", "inputs": [], "outputs": []}]
    nodes += [{"name": f"{name}_node", "type": "DL model", "model_name": name} for name in names]
    content = {
        "model_config_list": [
            {"config": {"name": "tint", "base_path": "/opt/models/tint", "layout": "NHWC:NHWC", **pixels}},
            {"config": {"name": "shade", "base_path": "/opt/models/shade", "nireq": 4, "target_device": "CPU"}},
        ],
        "custom_node_library_config_list": [{"name": "decoder", "base_path": "/libs/decoder.so"}],
        "pipeline_config_list": [{"name": "both", "inputs": ["image"], "nodes": nodes, "outputs": []}],
    }
    return text(root / "config.json", json.dumps(content))


def model_server_one(root: Path) -> Path:
    """One ONNX model of several versions, with properties of OpenVINO."""
    for version in (1, 3):
        onnx(root / f"models/tint/{version}/model.onnx")
    config = {
        "name": "tint",
        "base_path": "models/tint",
        "shape": "(1,3,8,12)",
        "plugin_config": {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"},
        "model_version_policy": {"latest": {"num_versions": 2}},
    }
    text(root / "config.json", json.dumps({"model_config_list": [{"config": config}]}))
    return root


def service(name: str, address: str, **predictor: object) -> dict[str, object]:
    model = {"modelFormat": {"name": "onnx"}, "protocolVersion": "v2", "storageUri": address}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"predictor": {**predictor, "model": model}},
    }


def graph(router: str, *steps: dict[str, object]) -> dict[str, object]:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": "both"},
        "spec": {"nodes": {"root": {"routerType": router, "steps": list(steps)}}},
    }


def kserve(root: Path, *manifests: dict[str, object]) -> Path:
    return text(root / "models.yaml", yaml.safe_dump_all(manifests))


def kserve_ensemble(root: Path) -> Path:
    """Two services and a graph that calls both."""
    onnx(root / "tint/1/model.onnx")
    onnx(root / "shade/model.onnx")
    both = graph("Ensemble", {"serviceName": "tint"}, {"serviceName": "shade"})
    one = service("tint", "pvc://models/tint", minReplicas=1, maxReplicas=3)
    return kserve(root, one, service("shade", "s3://bucket/shade"), both)


def kserve_sequence(root: Path) -> Path:
    """A second service for answers of which the first one is not sure."""
    onnx(root / "tint/1/model.onnx")
    ir(root / "shade/1/model.xml")
    unsure = {"condition": "[@this].#(predictions.#(confidence<0.9))", "data": "$request"}
    steps = graph("Sequence", {"serviceName": "tint"}, {"serviceName": "shade", **unsure})
    return kserve(root, service("tint", "pvc://models/tint"), service("shade", "pvc://models/shade"), steps)


def deployment(unit: dict[str, object], **more: object) -> dict[str, object]:
    predictor = {"name": "default", "replicas": 2, "graph": unit, **more}
    return {
        "apiVersion": "machinelearning.seldon.io/v1",
        "kind": "SeldonDeployment",
        "metadata": {"name": "pipeline"},
        "spec": {"predictors": [predictor]},
    }


def seldon_pipeline(root: Path) -> Path:
    """Intel and Seldon's graph: a transformer, a combiner, and two models behind proxies."""
    onnx(root / "tint/1/model.onnx")
    ir(root / "shade/1/model.xml")
    models = [{"name": name, "type": "MODEL", "children": []} for name in ("tint", "shade")]
    combiner = {"name": "combine", "type": "COMBINER", "children": models}
    containers = [
        {"name": f"{name}-server", "args": ["--model_name", name, "--model_path", f"gs://bucket/{name}"]}
        for name in ("tint", "shade")
    ]
    components = [{"spec": {"containers": containers}, "hpaSpec": {"minReplicas": 1, "maxReplicas": 4}}]
    unit = {"name": "transform", "type": "TRANSFORMER", "children": [combiner]}
    return text(root / "seldon.json", json.dumps(deployment(unit, componentSpecs=components)))


def seldon_test(root: Path) -> Path:
    """Two models between which images are split."""
    onnx(root / "old/model.onnx")
    onnx(root / "new/model.onnx")
    models = [
        {"name": name, "type": "MODEL", "implementation": "TRITON_SERVER", "modelUri": f"gs://bucket/{name}"}
        for name in ("old", "new")
    ]
    ratio = [{"name": "ratioA", "value": "0.8", "type": "FLOAT"}]
    unit = {
        "name": "split",
        "implementation": "RANDOM_ABTEST",
        "type": "ROUTER",
        "parameters": ratio,
        "children": models,
    }
    return text(root / "seldon.yaml", yaml.safe_dump(deployment(unit)))


SHAPES: list[Callable[[Path], Path]] = [
    triton_one,
    triton_ensemble,
    model_server_pipeline,
    model_server_one,
    kserve_ensemble,
    kserve_sequence,
    seldon_pipeline,
    seldon_test,
]
