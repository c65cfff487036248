"""The ensemble on NVIDIA Triton, from nvidia-pytriton's wheel: a Triton ensemble of Python models, a process each.

The repository is as Triton's own pages have it: a `config.pbtxt` and a `model.py` for each model, joined by one of
platform `ensemble`. With `--callable` one Python model in one process decodes, asks both predictors at once and
combines. The server runs without pytriton's proxy, which costs a copy of each request. An image is sent by Triton's
extension for raw binary requests. A model batches what waits while it works, up to 16; a queue delay of 2 ms made one
client wait longer. One process decodes, and the predictors share the cores.
"""

import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import ensemble_peer
import numpy as np
from ensemble_peer import MAX_BATCH_SIZE, Members, decode, hints, parser, resize


class Decode:
    def __init__(self, options: dict[str, Any]) -> None:
        self.sizes = options["sizes"]

    def __call__(self, encoded: Any) -> dict[str, Any]:
        images = [decode(image) for image in encoded[:, 0]]
        return {f"pixels{i}": np.stack([resize(image, size) for image in images]) for i, size in enumerate(self.sizes)}


class Predict:
    def __init__(self, options: dict[str, Any]) -> None:
        self.member = Members([options["model"]], options["openvino"])

    def __call__(self, pixels: Any) -> dict[str, Any]:
        return {"scores": self.member(pixels)}


class Combine:
    def __init__(self, options: dict[str, Any]) -> None:
        pass

    def __call__(self, *scores: Any) -> dict[str, Any]:
        mean = np.mean(scores, axis=0)
        index = mean.argmax(axis=1, keepdims=True)
        return {
            "label": index.astype(str).astype(object),
            "index": index.astype(np.int32),
            "probability": np.take_along_axis(mean, index, axis=1).astype(np.float32),
        }


class Callable:
    """Everything in one process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.decode, self.combine = Decode(options), Combine(options)
        self.members = Members(options["models"], options["openvino"])

    def __call__(self, encoded: Any) -> dict[str, Any]:
        return self.combine(self.members(*self.decode(encoded).values()))


NODES = {node.__name__: node for node in (Decode, Predict, Combine, Callable)}


class TritonPythonModel:
    """A node in a process of Triton's Python backend, which looks for a class of this name."""

    def initialize(self, args: dict[str, str]) -> None:
        import triton_python_backend_utils as utils

        self.utils = utils
        config = json.loads(args["model_config"])
        options = json.loads(config["parameters"]["options"]["string_value"])
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.node = NODES[options["node"]](options)

    def execute(self, requests: list[Any]) -> list[Any]:
        tensors = [
            [self.utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]
            for request in requests
        ]
        ends = np.cumsum([len(first) for first, *_ in tensors])
        try:
            outputs = self.node(*(np.concatenate(column) for column in zip(*tensors, strict=True)))
        except ValueError as err:
            error = self.utils.TritonError(str(err))
            return [self.utils.InferenceResponse(error=error) for _ in requests]
        return [
            self.utils.InferenceResponse(
                [
                    self.utils.Tensor(name, np.ascontiguousarray(value[end - len(first) : end]))
                    for name, value in outputs.items()
                ]
            )
            for end, (first, *_) in zip(ends, tensors, strict=True)
        ]


Tensor = tuple[str, str, list[int]]
LABEL: list[Tensor] = [("label", "STRING", [1]), ("index", "INT32", [1]), ("probability", "FP32", [1])]


def tensors(kind: str, of: list[Tensor]) -> str:
    texts = [f'{{ name: "{name}" data_type: TYPE_{type_} dims: {dims} }}' for name, type_, dims in of]
    return f"{kind} [ {', '.join(texts)} ]"


def node(name: str, inputs: list[Tensor], outputs: list[Tensor], **options: Any) -> None:
    """Write a model of the Python backend into the repository; its code is this file."""
    folder = Path("repository", name)
    (folder / "1").mkdir(parents=True)
    shutil.copy(__file__, folder / "1" / "model.py")
    # The processes of models have a path of their own.
    shutil.copy(ensemble_peer.__file__, folder / "1")
    text = json.dumps(json.dumps(options))
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        f"max_batch_size: {MAX_BATCH_SIZE}",
        tensors("input", inputs),
        tensors("output", outputs),
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
        "dynamic_batching { }",
        f'parameters {{ key: "options" value {{ string_value: {text} }} }}',
    ]
    (folder / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


def step(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'{{ model_name: "{name}" model_version: -1 {" ".join(maps)} }}'


def write(sizes: list[list[int]], models: list[str], precision_hint: str, one_callable: bool) -> None:
    """Write the repository, into the current folder."""
    image: Tensor = ("image", "STRING", [1])
    # One size is of all models.
    pixels: list[Tensor] = [(f"pixels{i}", "UINT8", [*size, 3]) for i, size in enumerate(sizes)]
    threads = max(1, len(os.sched_getaffinity(0)) // len(models))
    options = hints(precision_hint, INFERENCE_NUM_THREADS=threads, ENABLE_CPU_PINNING=False)
    if one_callable:
        node("ensemble", [image], LABEL, node="Callable", sizes=sizes, models=models, openvino=options)
        return
    node("decode", [image], pixels, node="Decode", sizes=sizes)
    scores: list[Tensor] = []
    steps = [step("decode", {"image": "image"}, {name: name for name, *_ in pixels})]
    for i, path in enumerate(models):
        taken = pixels[i % len(pixels)]
        node(f"model{i}", [taken], [("scores", "FP32", [-1])], node="Predict", model=path, openvino=options)
        steps.append(step(f"model{i}", {taken[0]: taken[0]}, {"scores": f"scores{i}"}))
        scores.append((f"scores{i}", "FP32", [-1]))
    node("combine", scores, LABEL, node="Combine")
    steps.append(step("combine", {name: name for name, *_ in scores}, {name: name for name, *_ in LABEL}))
    folder = Path("repository", "ensemble")
    (folder / "1").mkdir(parents=True)
    lines = [
        'name: "ensemble"',
        'platform: "ensemble"',
        f"max_batch_size: {MAX_BATCH_SIZE}",
        tensors("input", [image]),
        tensors("output", LABEL),
        f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}",
    ]
    (folder / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Serve until SIGINT."""
    arguments = parser()
    arguments.add_argument("--callable", action="store_true")
    args = arguments.parse_args()
    sizes = [args.size[i : i + 2] for i in range(0, len(args.size), 2)]
    write(sizes, args.models, args.precision_hint, args.callable)
    packages = Path(sysconfig.get_path("purelib"))
    triton = packages / "pytriton" / "tritonserver"
    # The stub that runs a model's process must be of this Python's version, and beside the backend's library.
    backend = Path("backends", "python")
    shutil.copytree(triton / "backends" / "python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(triton / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    # The stub's libpython must be this Python's too: another of the same version finds no module that fits.
    libraries = [sysconfig.get_config_var("LIBDIR"), str(packages / "nvidia_pytriton.libs")]
    # It takes the packages of the Python that is first on the path.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries), "PATH": path}
    server = str(triton / "bin" / "tritonserver")
    flags = ["--model-repository=repository", f"--backend-directory={backend.parent.resolve()}"]
    flags += ["--http-address=127.0.0.1", f"--http-port={args.port}", "--allow-metrics=false"]
    flags += ["--grpc-address=127.0.0.1", f"--grpc-port={args.grpc_port}"]
    os.execve(server, [server, *flags], environment)  # noqa: S606


if __name__ == "__main__":
    main()
