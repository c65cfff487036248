"""TensorFlow Serving's view of the ensemble: one servable with one signature, the same for REST and gRPC.

Source: https://github.com/tensorflow/serving (g3doc/api_rest.md, apis/*.proto)
"""

from collections.abc import Sequence
from typing import Any

from deployments.contract.errors import InvalidParameter, NotFound
from deployments.contract.options import Options
from deployments.ingress.open_inference.metadata import TensorMetadata
from deployments.ingress.open_inference.model import INPUT, MODEL, Ensemble, Inferred
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.protocol import Service
from deployments.observe.observer import Call

VERSION = 1
# The version in requests of OpenVINO Model Server's clients that want no version in particular.
LATEST = 0
SIGNATURE = "serving_default"
DTYPES = {"BYTES": "DT_STRING", "INT64": "DT_INT64", "FP32": "DT_FLOAT"}


class Servable:
    """The ensemble as that API sees it.

    Attributes:
        outputs: the names of its outputs.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = Ensemble(service.ingress, service.labels)
        self.outputs = tuple(output.name for output in self._model.metadata.outputs)

    def check(self, name: str, version: int | None = None, signature: str = "") -> None:
        """Check a servable's name, version and signature; errors are in that API's words.

        Raises:
            NotFound: there is no such servable, or it has no such version.
            InvalidParameter: it has no such signature.
        """
        if name != MODEL or version not in {None, LATEST, VERSION}:
            raise not_found(name, version)
        if signature not in {"", SIGNATURE}:
            raise InvalidParameter(f"Serving signature key {signature[:40]!r} not found; it is {SIGNATURE!r}")

    async def predict(
        self, images: Sequence[bytes], names: Sequence[str], asked: Options, call: Call, began: float | None = None
    ) -> Inferred:
        """Predict the named outputs for encoded images; see `Ensemble.infer`."""
        self._service.ingress.admission.check_count(len(images))
        tensor = Tensor(INPUT, "BYTES", [len(images)], images)
        return await self._model.infer(tensor, names, asked, call, began)

    def named(self, names: Sequence[str]) -> list[str]:
        """Return the outputs to answer: the outputs that a request names, or all; raise InvalidParameter for others."""
        if unknown := sorted(set(names) - set(self.outputs)):
            raise InvalidParameter(f"there is no output {unknown[0][:40]!r}; the outputs are {list(self.outputs)}")
        return list(dict.fromkeys(names)) or list(self.outputs)

    def signatures(self) -> dict[str, Any]:
        """Return the `SignatureDefMap` as JSON has it."""
        metadata = self._model.metadata
        signature = {
            "inputs": {tensor.name: _info(tensor) for tensor in metadata.inputs},
            "outputs": {tensor.name: _info(tensor) for tensor in metadata.outputs},
            "method_name": "tensorflow/serving/predict",
        }
        return {"signature_def": {SIGNATURE: signature}}

    def status(self) -> dict[str, Any]:
        """Return the `GetModelStatusResponse` as JSON has it."""
        state = "AVAILABLE" if self._service.is_ready() else "LOADING"
        known = {"version": str(VERSION), "state": state, "status": {"error_code": 0, "error_message": ""}}
        return {"model_version_status": [known]}


def not_found(name: str, version: int | str | None) -> NotFound:
    """Make the error of a servable that does not exist."""
    is_latest = version is None or str(version) == str(LATEST)
    wanted = f"Latest({name[:80]})" if is_latest else f"Specific({name[:80]}, {version})"
    return NotFound(f"Servable not found for request: {wanted}")


def check_input(names: Sequence[str]) -> None:
    """Raise InvalidParameter unless these are the one input."""
    if list(names) != [INPUT]:
        raise InvalidParameter(f"the request needs exactly one input, {INPUT!r}; it has {[n[:40] for n in names][:8]}")


def strings(elements: list[bytes], extents: Sequence[int], are_listed: bool) -> list[bytes]:
    """Return the elements of a tensor of encoded images; raise InvalidParameter for another tensor."""
    if not are_listed:
        raise InvalidParameter(f"the input {INPUT!r} is DT_STRING, an encoded image an element of string_val")
    count = len(elements)
    if list(extents) not in ([count], [count, 1]) and (extents or count != 1):
        raise InvalidParameter(f"the input {INPUT!r} has shape {list(extents)[:4]} but {count} elements")
    return elements


def _info(tensor: TensorMetadata) -> dict[str, Any]:
    dims = [{"size": str(extent), "name": ""} for extent in tensor.shape]
    shape = {"dim": dims, "unknown_rank": False}
    return {"dtype": DTYPES[tensor.datatype], "tensor_shape": shape, "name": f"{tensor.name}:0"}
