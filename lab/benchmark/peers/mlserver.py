"""The ensemble on MLServer: a custom `MLModel` with adaptive batches, asked by the V2 protocol with base64 in JSON.

MLServer batches what comes by that protocol, but not what a custom handler answers. Parallel workers are off: every
batch has every thread, and none is sent to another process. Gzip, metrics and debug are off.
"""

import asyncio

import numpy as np
from ensemble_peer import MAX_BATCH_SIZE, Members, decode, hints, parser, resize
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import Base64Codec, NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse

MAX_BATCH_TIME_S = 0.002


class Ensemble(MLModel):
    async def load(self) -> bool:
        extra = self.settings.parameters.extra
        self.size, self.members = extra["size"], Members(extra["models"], extra["options"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        try:
            images = [decode(image) for image in Base64Codec.decode_input(payload.inputs[0])]
        except ValueError as err:
            raise InferenceError(str(err)) from err
        mean = self.members(np.stack([resize(image, self.size) for image in images]))
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
    args = parser().parse_args()
    settings = Settings(
        host="127.0.0.1",
        http_port=args.port,
        grpc_port=args.grpc_port,
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
        gzip_enabled=False,
    )
    extra = {"size": args.size, "models": args.models, "options": hints(args.precision_hint)}
    ensemble = ModelSettings(
        name="ensemble",
        implementation=Ensemble,
        max_batch_size=MAX_BATCH_SIZE,
        max_batch_time=MAX_BATCH_TIME_S,
        parameters=ModelParameters(extra=extra),
    )
    await MLServer(settings).start([ensemble])


if __name__ == "__main__":
    asyncio.run(main())
