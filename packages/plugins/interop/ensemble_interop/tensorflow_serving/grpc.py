"""gRPC: TensorFlow Serving's `PredictionService` and `ModelService`."""

from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from deployments.contract.errors import InvalidParameter
from deployments.ingress.open_inference.model import INPUT
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.options import DEFAULT
from deployments.ingress.protocol import Service
from deployments.ingress.routes import Calls, Rpc
from deployments.observe.observer import Call
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as pb
from ensemble_interop.tensorflow_serving.servable import DTYPES, SIGNATURE, VERSION, Servable, check_input, strings

PREDICTION = pb.DESCRIPTOR.services_by_name["PredictionService"]
MODEL_SERVICE = pb.DESCRIPTOR.services_by_name["ModelService"]
METADATA_FIELD = "signature_def"


class TensorFlowServingGrpc:
    """Answers that API's calls."""

    def __init__(self, service: Service) -> None:
        self._servable = Servable(service)
        self._signatures = json_format.ParseDict(self._servable.signatures(), pb.SignatureDefMap())

    def calls(self) -> Calls:
        """Return the API's methods."""
        return {
            f"{PREDICTION.full_name}/Predict": Rpc(self._predict, observed=True),
            f"{PREDICTION.full_name}/GetModelMetadata": Rpc(self._metadata),
            f"{MODEL_SERVICE.full_name}/GetModelStatus": Rpc(self._status),
        }

    async def _predict(self, request: pb.PredictRequest, call: Call) -> Message:
        spec = self._spec(request)
        check_input(list(request.inputs))
        names = self._servable.named(request.output_filter)
        tensor = request.inputs[INPUT]
        extents, are_listed = tensor.tensor_shape.dim, tensor.dtype == pb.DT_STRING and not tensor.tensor_content
        images = strings(list(tensor.string_val), [extent.size for extent in extents], are_listed)
        inferred = await self._servable.predict(images, names, DEFAULT, call)
        outputs = {tensor.name: _proto(tensor) for tensor in inferred.outputs}
        return pb.PredictResponse(outputs=outputs, model_spec=spec)

    async def _metadata(self, request: pb.GetModelMetadataRequest, _: Call) -> Message:
        spec = self._spec(request)
        if list(request.metadata_field) != [METADATA_FIELD]:
            raise InvalidParameter(f"metadata_field must be {METADATA_FIELD!r} alone")
        answer = pb.GetModelMetadataResponse(model_spec=spec)
        answer.metadata[METADATA_FIELD].Pack(self._signatures)
        return answer

    async def _status(self, request: pb.GetModelStatusRequest, _: Call) -> Message:
        self._spec(request)
        return json_format.ParseDict(self._servable.status(), pb.GetModelStatusResponse())

    def _spec(self, request: Any) -> pb.ModelSpec:
        """Return the specification of the model that answers; raise as `Servable.check`."""
        asked = request.model_spec
        if asked.version_label:
            raise InvalidParameter(f"the version has no label; ask for version {VERSION}, or for none")
        self._servable.check(
            asked.name, asked.version.value if asked.HasField("version") else None, asked.signature_name
        )
        return pb.ModelSpec(name=asked.name, version={"value": VERSION}, signature_name=SIGNATURE)


def _proto(tensor: Tensor) -> pb.TensorProto:
    shape = pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=extent) for extent in tensor.shape])
    dtype = DTYPES[tensor.datatype]
    if tensor.datatype == "BYTES":
        return pb.TensorProto(dtype=dtype, tensor_shape=shape, string_val=tensor.data)
    field = "int64_val" if tensor.data.dtype == np.int64 else "float_val"
    return pb.TensorProto(dtype=dtype, tensor_shape=shape, **{field: tensor.data.ravel().tolist()})
