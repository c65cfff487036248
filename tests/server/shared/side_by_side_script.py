"""Run with tritonclient's Python: uses ensemble-serving in the same process, whichever is imported first.

What tritonclient's environment lacks comes from the server's; what both have, such as protobuf, is tritonclient's.
"""

import importlib
import json
import site
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement

FIRST, PACKAGES, ADDRESS, PICTURE = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]).read_bytes()
LIBRARIES = ["tritonclient.grpc", "graph.app"]

site.addsitedir(PACKAGES)
for library in sorted(LIBRARIES, key=lambda name: name != FIRST):
    importlib.import_module(library)

import grpc  # noqa: E402
import tritonclient.grpc as over_grpc  # noqa: E402

from deployments.ingress.listeners.grpc import GrpcListener  # noqa: E402
from ensemble_serving.protocol import inference_pb2 as pb  # noqa: E402


def theirs():
    tensor = over_grpc.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([PICTURE], dtype=np.object_))
    return over_grpc.InferenceServerClient(ADDRESS).infer("ensemble", [tensor]).as_numpy("probabilities").tolist()


def ours():
    request = pb.ModelInferRequest(model_name="ensemble")
    request.inputs.add(name="image", datatype="BYTES", shape=[1]).contents.bytes_contents.append(PICTURE)
    with grpc.insecure_channel(ADDRESS) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", request.SerializeToString, pb.ModelInferResponse.FromString
        )
        answer = infer(request, timeout=60)
    [output] = [output for output in answer.outputs if output.name == "probabilities"]
    return [list(output.contents.fp32_contents)]


def unmet():
    """Requirements of both that are not met by what is installed."""
    found = [Requirement(each) for name in ("ensemble-serving", "tritonclient") for each in metadata.requires(name)]
    extras = ({"extra": ""}, {"extra": "grpc"})
    needed = [each for each in found if each.marker is None or any(each.marker.evaluate(extra) for extra in extras)]
    return [str(each) for each in needed if metadata.version(each.name) not in each.specifier]


print(
    json.dumps(
        {
            "theirs": theirs(),
            "ours": ours(),
            "unmet": unmet(),
            "protobuf": metadata.version("protobuf"),
            "listener": GrpcListener.__name__,
        }
    )
)
