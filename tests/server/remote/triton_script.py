"""Run with pytriton's Python: a model of the repository, twice; one takes the JPEG. HTTP GRPC FOLDER IR.

Triton runs a Python model; pytriton brings the server.
"""

import io
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 16
input [ {{ name: "image" data_type: TYPE_{type} dims: {dims} }} ]
output [ {{ name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] }}, {{ name: "index" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "path" value {{ string_value: "{path}" }} }}
"""  # noqa: E501


class TritonPythonModel:
    """Triton's Python backend looks for a class of this name."""

    def initialize(self, args):
        import openvino as ov
        import triton_python_backend_utils as utils

        self.utils = utils
        path = json.loads(args["model_config"])["parameters"]["path"]["string_value"]
        network = ov.Core().read_model(path)
        network.reshape([-1, *list(network.input(0).get_partial_shape())[1:]])
        self.request = ov.Core().compile_model(network, "CPU").create_infer_request()

    def execute(self, requests):
        return [self.answer(self.utils.get_input_tensor_by_name(each, "image").as_numpy()) for each in requests]

    def answer(self, image):
        if image.dtype == np.object_:
            from PIL import Image

            decoded = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in image[:, 0]]
            image = np.ascontiguousarray(np.stack(decoded)[..., ::-1])
        self.request.infer({0: image})
        scores = self.request.get_output_tensor(0).data.copy()
        index = scores.argmax(axis=1, keepdims=True).astype(np.int32)
        tensors = [self.utils.Tensor("probabilities", scores), self.utils.Tensor("index", index)]
        return self.utils.InferenceResponse(tensors)


def main():
    http, grpc, folder, path = sys.argv[1:]
    repository, backends = Path(folder, "repository"), Path(folder, "backends")
    for name, kind, dims in (("resnet", "UINT8", "[ 32, 32, 3 ]"), ("encoded", "STRING", "[ 1 ]")):
        (repository / name / "3").mkdir(parents=True)
        shutil.copy(__file__, repository / name / "3" / "model.py")
        text = CONFIG.format(name=name, type=kind, dims=dims, path=path)
        (repository / name / "config.pbtxt").write_text(text)
    packages = Path(sysconfig.get_path("purelib"))
    triton = packages / "pytriton" / "tritonserver"
    shutil.copytree(triton / "backends" / "python", backends / "python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # The stub that runs a model's process must be of this Python's version, and beside the backend's library.
    shutil.copy(triton / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    libraries = [sysconfig.get_config_var("LIBDIR"), str(packages / "nvidia_pytriton.libs")]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    # It takes the packages of the Python that is first on the path.
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    flags = [f"--model-repository={repository}", f"--backend-directory={backends}", "--allow-metrics=false"]
    flags += ["--http-address=127.0.0.1", f"--http-port={http}", "--grpc-address=127.0.0.1", f"--grpc-port={grpc}"]
    server = str(triton / "bin" / "tritonserver")
    os.execve(server, [server, *flags], environment)


if __name__ == "__main__":
    main()
