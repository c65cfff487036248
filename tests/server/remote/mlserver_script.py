"""Run with MLServer's Python: serves models of the repository. HTTP PORT, GRPC PORT, then NAME=PATH of each IR."""

import asyncio
import sys

import openvino as ov
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor


class OpenVino(MLModel):
    async def load(self) -> bool:
        network = ov.Core().read_model(self.settings.parameters.extra["path"])
        network.reshape([-1, *list(network.input(0).get_partial_shape())[1:]])
        self.request = ov.Core().compile_model(network, "CPU").create_infer_request()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        pixels = NumpyCodec.decode_input(payload.inputs[0])
        self.request.infer({0: pixels})
        scores = self.request.get_output_tensor(0).data.copy()
        output = NumpyCodec.encode_output("probabilities", scores)
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])


async def main():
    http, grpc, *models = sys.argv[1:]
    settings = Settings(
        host="127.0.0.1",
        http_port=http,
        grpc_port=grpc,
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
    )
    served = [
        ModelSettings(
            name=name,
            implementation=OpenVino,
            parameters=ModelParameters(version="7", extra={"path": path}),
            inputs=[MetadataTensor(name="image", datatype="UINT8", shape=[-1, 32, 32, 3])],
            outputs=[MetadataTensor(name="probabilities", datatype="FP32", shape=[-1, 10])],
        )
        for name, _, path in (model.partition("=") for model in models)
    ]
    await MLServer(settings).start(served)


asyncio.run(main())
