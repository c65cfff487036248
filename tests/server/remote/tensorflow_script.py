"""Run with ovmsclient's Python: TensorFlow Serving's API made of its own messages. HTTP PORT, GRPC PORT, NAME=PATH.

No package brings TensorFlow Serving itself. What travels here is what the classes say that were generated from its own
files, which ovmsclient brings along; its JSON is those messages' JSON, as TensorFlow Serving makes it.
"""

import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import openvino as ov
from google.protobuf import json_format
from ovmsclient.tfs_compat.grpc.tensors import make_ndarray, make_tensor_proto
from ovmsclient.tfs_compat.protos.tensorflow.core.framework import types_pb2
from ovmsclient.tfs_compat.protos.tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

VERSION = 5
SIGNATURE = "serving_default"

http_port, grpc_port, model = sys.argv[1:]
name, _, path = model.partition("=")
network = ov.Core().read_model(path)
network.reshape([-1, *list(network.input(0).get_partial_shape())[1:]])
compiled = ov.Core().compile_model(network, "CPU")


def metadata():
    answer = get_model_metadata_pb2.GetModelMetadataResponse()
    answer.model_spec.name = name
    answer.model_spec.version.value = VERSION
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signature = signatures.signature_def[SIGNATURE]
    signature.method_name = "tensorflow/serving/predict"
    for tensors, key, dtype, shape in (
        (signature.inputs, "pixels", types_pb2.DT_UINT8, (-1, 32, 32, 3)),
        (signature.outputs, "scores", types_pb2.DT_FLOAT, (-1, 10)),
        (signature.outputs, "classes", types_pb2.DT_INT64, (-1,)),
    ):
        tensors[key].name = f"{key}:0"
        tensors[key].dtype = dtype
        for extent in shape:
            tensors[key].tensor_shape.dim.add(size=extent)
    answer.metadata["signature_def"].Pack(signatures)
    return answer


def scores(pixels):
    assert pixels.dtype == np.uint8
    return compiled.create_infer_request().infer({0: pixels})[0]


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    def GetModelMetadata(self, request, context):  # noqa: N802
        assert list(request.metadata_field) == ["signature_def"]
        if request.model_spec.name != name:
            context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found")
        return metadata()

    def Predict(self, request, context):  # noqa: N802
        assert request.model_spec.signature_name == SIGNATURE
        answer = predict_pb2.PredictResponse()
        answer.model_spec.version.value = VERSION
        # Without a filter every output is answered.
        [wanted] = request.output_filter or ["scores"]
        answer.outputs[wanted].CopyFrom(make_tensor_proto(scores(make_ndarray(request.inputs["pixels"]))))
        return answer


class Rest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, content, status=200):
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == f"/v1/models/{name}":
            self.answer('{"model_version_status": [{"version": "5", "state": "AVAILABLE"}]}')
        elif self.path == f"/v1/models/{name}/metadata":
            self.answer(json_format.MessageToJson(metadata(), preserving_proto_field_name=True))
        else:
            self.answer('{"error": "Servable not found"}', 404)

    def do_POST(self):
        body = json.load(io.BytesIO(self.rfile.read(int(self.headers["Content-Length"]))))
        assert self.path == f"/v1/models/{name}:predict"
        assert body["signature_name"] == SIGNATURE
        found = scores(np.array(body["instances"], np.uint8))
        rows = [{"scores": row.tolist(), "classes": int(row.argmax())} for row in found]
        self.answer(json.dumps({"predictions": rows}))

    def log_message(self, *_):
        pass


server = grpc.server(ThreadPoolExecutor(4))
prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
server.add_insecure_port(f"127.0.0.1:{grpc_port}")
server.start()
ThreadingHTTPServer(("127.0.0.1", int(http_port)), Rest).serve_forever()
