"""The ensemble on plain Ray Serve: a deployment for each step, chained by handles as Ray's own pages do."""

import signal
import threading
from typing import Any

import numpy as np
import openvino as ov
import ray
from ensemble_peer import decode, hints, parser, resize
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request

# Serve as it comes, but for the reservation: six times one CPU would never start on two.
deployment = serve.deployment(ray_actor_options={"num_cpus": 0.1})


@deployment
class Transformer:
    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, encoded: bytes) -> Any:
        return resize(decode(encoded), self.size)[None]


@deployment
class Predictor:
    def __init__(self, path: str, precision_hint: str, threads: int) -> None:
        options = hints(precision_hint, ENABLE_CPU_PINNING=False)
        if threads:
            options["INFERENCE_NUM_THREADS"] = threads
        self.model = ov.Core().compile_model(path, "CPU", options)
        self.own = threading.local()

    def __call__(self, pixels: Any) -> Any:
        # Serve calls this in several threads at once, and an inference request that is busy raises.
        if not hasattr(self.own, "request"):
            self.own.request = self.model.create_infer_request()
        return self.own.request.infer(pixels)[0]


@deployment
class Combiner:
    def __call__(self, *scores: Any) -> Any:
        return np.mean(scores, axis=0)


@deployment
class Labeler:
    def __call__(self, scores: Any) -> dict[str, Any]:
        index = int(scores[0].argmax())
        return {"label": str(index), "index": index, "probability": float(scores[0, index])}


@deployment
class Ingress:
    def __init__(
        self,
        transformer: DeploymentHandle[Any],
        predictors: list[DeploymentHandle[Any]],
        combiner: DeploymentHandle[Any],
        labeler: DeploymentHandle[Any],
    ) -> None:
        self.transformer, self.predictors, self.combiner, self.labeler = transformer, predictors, combiner, labeler

    async def __call__(self, request: Request) -> Any:
        pixels = self.transformer.remote(await request.body())
        scores = [predictor.remote(pixels) for predictor in self.predictors]
        return await self.labeler.remote(self.combiner.remote(*scores))


def main() -> None:
    """Serve until SIGTERM."""
    arguments = parser()
    arguments.add_argument("--threads", type=int, default=1, help="of a model; 0 for OpenVINO's own choice")
    args = arguments.parse_args()
    ray.init(address="local", log_to_driver=False)
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=args.port))
    predictors = [
        Predictor.options(name=f"Predictor{i}").bind(path, args.precision_hint, args.threads)
        for i, path in enumerate(args.models)
    ]
    serve.run(
        Ingress.bind(Transformer.bind(tuple(args.size)), predictors, Combiner.bind(), Labeler.bind()),
        route_prefix="/classify",
    )
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
