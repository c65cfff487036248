"""One way to ask over each protocol: `classify(image, **options)` answers ("ok", label) or ("error", code, status)."""

import importlib
from unittest.mock import Mock

import grpc
import httpx
import ray.exceptions

from deployments.contract.errors import EnsembleError
from ensemble_serving.protocol import inference_pb2 as pb
from tests.stub import GRPCInferenceServiceStub

# Of each code its status over HTTP and over gRPC.
STATUS = {
    "invalid_image": (400, "INVALID_ARGUMENT"),
    "image_too_large": (413, "INVALID_ARGUMENT"),
    "invalid_parameter": (422, "INVALID_ARGUMENT"),
    "overloaded": (503, "RESOURCE_EXHAUSTED"),
    "deadline_exceeded": (504, "DEADLINE_EXCEEDED"),
}


def assert_error(outcome, code):
    """Assert that a client was refused with this code, and with the status that its protocol has for it."""
    kind, got, status = outcome
    assert (kind, got) == ("error", code)
    assert status in {None, *STATUS[code]}


class Http:
    def __init__(self, server):
        self.client = httpx.Client(base_url=server.url, timeout=60)

    def classify(self, image, **options):
        answer = self.client.post("/classify", content=image, headers={"Content-Type": "image/jpeg"}, params=options)
        if answer.status_code == 200:
            return "ok", answer.json()["label"]
        return "error", answer.json()["error"]["code"], answer.status_code

    def close(self):
        self.client.close()


class Grpc:
    def __init__(self, server):
        self.channel = grpc.insecure_channel(server.grpc)
        self.stub = GRPCInferenceServiceStub(self.channel)

    def classify(self, image, **options):
        request = infer_request([image])
        for name, value in options.items():
            request.parameters[name].int64_param = value
        try:
            answer = self.stub.ModelInfer(request, timeout=60)
        except grpc.RpcError as err:
            return "error", err.details().partition(":")[0], err.code().name
        return "ok", answer.outputs[0].contents.bytes_contents[0].decode()

    def close(self):
        self.channel.close()


class Handle:
    def __init__(self, handle):
        self.handle = handle

    def classify(self, image, **options):
        try:
            return "ok", self.handle.classify.remote(image, **options).result(timeout_s=60).label
        except EnsembleError as err:
            return "error", err.code, None
        except ray.exceptions.RayTaskError as err:
            return "error", err.cause.code, None

    def close(self):
        pass


def infer_request(images, model="ensemble", raw=False, outputs=()):
    """A ModelInfer request of the images, typed or raw."""
    request = pb.ModelInferRequest(model_name=model, id="7")
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[len(images)])
    if raw:
        request.raw_input_contents.append(b"".join(len(i).to_bytes(4, "little") + i for i in images))
    else:
        tensor.contents.bytes_contents.extend(images)
    for name in outputs:
        request.outputs.add(name=name)
    return request


class Calls:
    """Notes the calls that a servicer adds to a server."""

    def __init__(self, functions):
        self.names = set()
        for function in functions:
            module, _, name = function.rpartition(".")
            getattr(importlib.import_module(module), name)(Mock(), self)

    def add_generic_rpc_handlers(self, _):
        pass

    def add_registered_method_handlers(self, service, handlers):
        self.names |= {f"/{service}/{name}" for name in handlers}
