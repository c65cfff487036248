"""Run with KServe's Python: its ModelServer with a model of the repository. HTTP PORT, GRPC PORT, NAME=PATH.

The model takes what models usually do elsewhere: float32, channels first, RGB, normalized. It answers logits, by the
Open Inference Protocol and, by REST, as TensorFlow Serving does.
"""

import sys

import numpy as np
import openvino as ov
from kserve import InferOutput, InferResponse, Model, ModelServer

MEAN, SCALE = (125.0, 123.0, 114.0), (63.0, 62.0, 66.0)


class OpenVino(Model):
    def __init__(self, name, path):
        super().__init__(name)
        self.request = ov.Core().compile_model(path, "CPU").create_infer_request()
        self.ready = True

    def get_input_types(self):
        return [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]

    def get_output_types(self):
        return [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]

    def predict(self, payload, headers=None):
        rows_alone = isinstance(payload, dict)
        x = np.array(payload["instances"], np.float32) if rows_alone else payload.inputs[0].as_numpy()
        rgb = x.transpose(0, 2, 3, 1) * np.float32(SCALE) + np.float32(MEAN)
        pixels = np.ascontiguousarray(np.rint(rgb).astype(np.uint8)[..., ::-1])
        self.request.infer({0: pixels})
        logits = np.log(self.request.get_output_tensor(0).data)
        if rows_alone:
            return {"predictions": logits.tolist()}
        output = InferOutput("logits", list(logits.shape), "FP32")
        output.set_data_from_numpy(logits, binary_data=payload.from_grpc)
        return InferResponse(payload.id, self.name, [output])


http, grpc, model = sys.argv[1:]
ModelServer(http_port=int(http), grpc_port=int(grpc), enable_docs_url=False).start([OpenVino(*model.split("="))])
