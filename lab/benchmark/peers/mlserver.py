"""The ensemble on MLServer: a custom `MLModel` with adaptive batches, asked by the V2 protocol with base64 in JSON.

MLServer batches what comes by that protocol, but not what a custom handler answers. Parallel workers are off: every
batch has every thread, and none is sent to another process. Gzip, metrics and debug are off.
"""

import argparse
import asyncio
from typing import Any

import cv2
import numpy as np
import openvino as ov
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import Base64Codec, NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse

MAX_BATCH_SIZE = 16
MAX_BATCH_TIME_S = 0.002


class Ensemble(MLModel):
    async def load(self) -> bool:
        cv2.setNumThreads(1)
        extra = self.settings.parameters.extra
        core = ov.Core()
        self.size = extra["size"]
        self.requests = [
            core.compile_model(path, "CPU", extra["options"]).create_infer_request() for path in extra["models"]
        ]
        return True

    def decode_image(self, encoded: bytes) -> Any:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise InferenceError("not an image")
        return cv2.resize(image, (self.size[1], self.size[0]), interpolation=cv2.INTER_AREA)

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        pixels = np.stack([self.decode_image(image) for image in Base64Codec.decode_input(payload.inputs[0])])
        for request in self.requests:
            request.start_async({0: pixels})
        for request in self.requests:
            request.wait()
        mean = np.mean([request.get_output_tensor(0).data for request in self.requests], axis=0)
        index = mean.argmax(axis=1)
        probability = mean[np.arange(len(mean)), index]
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                StringCodec.encode_output("label", [str(i) for i in index]),
                NumpyCodec.encode_output("index", index[:, None]),
                NumpyCodec.encode_output("probability", probability[:, None]),
            ],
        )


async def main() -> None:
    """Serve until SIGINT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=int, nargs=2, required=True)
    parser.add_argument("--precision-hint", default="")
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    options = {"PERFORMANCE_HINT": "LATENCY"}
    if args.precision_hint:
        options["INFERENCE_PRECISION_HINT"] = args.precision_hint
    settings = Settings(
        host="127.0.0.1",
        http_port=args.port,
        grpc_port=args.grpc_port,
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
        gzip_enabled=False,
    )
    ensemble = ModelSettings(
        name="ensemble",
        implementation=Ensemble,
        max_batch_size=MAX_BATCH_SIZE,
        max_batch_time=MAX_BATCH_TIME_S,
        parameters=ModelParameters(extra={"size": args.size, "models": args.models, "options": options}),
    )
    await MLServer(settings).start([ensemble])


if __name__ == "__main__":
    asyncio.run(main())
