"""The common parts of all peers: the arguments, and the steps of the ensemble on OpenVINO.

A process imports only the libraries that its steps need, because its memory is measured.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

MAX_BATCH_SIZE = 16


def parser() -> argparse.ArgumentParser:
    """Make a parser of the arguments that `ensemble benchmark` gives to every peer."""
    made = argparse.ArgumentParser()
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--grpc-port", type=int)
    made.add_argument("--size", type=int, nargs="+", required=True, help="height and width, of all models or of each")
    made.add_argument("--precision-hint", default="")
    made.add_argument("models", nargs="+")
    return made


def hints(precision: str, **more: Any) -> dict[str, Any]:
    """Make OpenVINO's options for a model."""
    return {"PERFORMANCE_HINT": "LATENCY", **({"INFERENCE_PRECISION_HINT": precision} if precision else {}), **more}


def decode(encoded: bytes) -> Any:
    """Decode an image; raises ValueError if it is none."""
    image = _cv2().imdecode(np.frombuffer(encoded, np.uint8), _cv2().IMREAD_COLOR)
    if image is None:
        raise ValueError("not an image")
    return image


def resize(image: Any, size: Sequence[int]) -> Any:
    """Resize an image to a height and width."""
    return _cv2().resize(image, (size[1], size[0]), interpolation=_cv2().INTER_AREA)


@cache
def _cv2() -> Any:
    import cv2

    cv2.setNumThreads(1)
    return cv2


class Members:
    """All members in this process; each batch has every thread."""

    def __init__(self, models: Sequence[str], options: dict[str, Any]) -> None:
        import openvino as ov

        self.requests = [ov.Core().compile_model(path, "CPU", options).create_infer_request() for path in models]

    def __call__(self, *pixels: Any) -> Any:
        """Ask all at once about their pixels, or about the same ones; returns the mean of their probabilities."""
        for number, request in enumerate(self.requests):
            request.start_async({0: pixels[number % len(pixels)]})
        for request in self.requests:
            request.wait()
        return np.mean([request.get_output_tensor(0).data for request in self.requests], axis=0)
