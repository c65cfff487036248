"""gRPC: the Open Inference Protocol's `inference.GRPCInferenceService`, with its extensions."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from deployments.contract.errors import InvalidParameter
from deployments.ingress import options
from deployments.ingress.open_inference import metadata, tensors
from deployments.ingress.open_inference.catalog import Catalog
from deployments.ingress.open_inference.model import Model, Requested
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.protocol import Service
from deployments.ingress.routes import Calls, Rpc
from deployments.observe.observer import Call
from ensemble_serving.protocol import inference_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
M = TypeVar("M", bound=Message)
# The field of a tensor's typed contents, by its datatype; protobuf has none for FP16.
CONTENTS = {
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class OpenInferenceGrpc:
    """Answers the protocol's calls."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ingress = service.ingress
        self._catalog = Catalog(service)

    def calls(self) -> Calls:
        """Return the protocol's methods that are served; gRPC itself answers UNIMPLEMENTED to others."""
        method = self._method
        found = {
            "ServerLive": method(pb.ServerLiveResponse, lambda _: {"live": True}, is_open=True),
            "ServerReady": method(pb.ServerReadyResponse, lambda _: {"ready": self._service.is_ready()}, is_open=True),
            "ServerMetadata": method(pb.ServerMetadataResponse, lambda _: self._catalog.server),
            "ModelReady": method(
                pb.ModelReadyResponse,
                lambda asked: {"ready": self._catalog.is_ready(asked.name, asked.version)},
                is_open=True,
            ),
            "ModelMetadata": method(pb.ModelMetadataResponse, lambda asked: self._find(asked).metadata),
            "ModelConfig": method(pb.ModelConfigResponse, self._config),
            "ModelStatistics": method(pb.ModelStatisticsResponse, self._statistics),
            "RepositoryIndex": method(
                pb.RepositoryIndexResponse, lambda asked: {"models": self._catalog.index(asked.ready)}
            ),
            "ModelInfer": Rpc(self._infer, observed=True),
        }
        return {f"{SERVICE.full_name}/{name}": rpc for name, rpc in found.items()}

    def _method(self, answer: type[M], report: Callable[[Any], Any], is_open: bool = False) -> Rpc:
        """Make a method that answers a request's report, which has JSON's types."""

        async def handler(request: Any, _: Call) -> Message:
            return json_format.ParseDict(msgspec.to_builtins(report(request)), answer())

        return Rpc(handler, is_open=is_open)

    def _find(self, asked: Any) -> Model:
        return self._catalog.find(asked.name, asked.version)

    def _config(self, asked: pb.ModelConfigRequest) -> dict[str, Any]:
        model = self._find(asked)
        return {"config": metadata.config(model.metadata, model.max_batch_size)}

    def _statistics(self, asked: pb.ModelStatisticsRequest) -> Any:
        return self._catalog.statistics(*([self._find(asked)] if asked.name else []))

    async def _infer(self, request: pb.ModelInferRequest, call: Call) -> pb.ModelInferResponse:
        """Answer a request; raw contents are answered raw, typed contents typed."""
        model = self._catalog.find(request.model_name, request.model_version)
        options.check_text("id", request.id)
        tensor = self._tensor(request, model)
        requested = model.requested(request.outputs, self._service.tensor_store, parameters)
        names = [each.name for each in requested]
        inferred = await model.infer(tensor, names, options.from_parameters(parameters(request.parameters)), call)
        response = pb.ModelInferResponse(
            model_name=model.metadata.name, model_version=model.metadata.versions[0], id=request.id
        )
        # What came from shared memory has no typed contents either; raw is what such clients read.
        raw = bool(request.raw_input_contents) or not request.inputs[0].HasField("contents")
        for name, value in inferred.parameters.items():
            response.parameters[name].string_param = value
        for tensor, asked in zip(model.as_requested(inferred.outputs, requested), requested, strict=True):
            self._add(response, tensor, asked, raw)
        return response

    def _add(self, response: pb.ModelInferResponse, tensor: Tensor, asked: Requested, raw: bool) -> None:
        """Add an output to a response: where the request has it, raw, or typed."""
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if asked.place is not None:
            for name, value in self._service.tensor_store.write(asked.place, tensors.to_raw(tensor)).items():
                field = "string_param" if isinstance(value, str) else "int64_param"
                setattr(output.parameters[name], field, value)
            if raw:
                # Clients count the outputs to find the contents of one.
                response.raw_output_contents.append(b"")
        elif raw:
            response.raw_output_contents.append(tensors.to_raw(tensor))
        else:
            elements = tensor.data if tensor.datatype == "BYTES" else tensor.data.ravel().tolist()
            getattr(output.contents, CONTENTS[tensor.datatype]).extend(elements)

    def _tensor(self, request: pb.ModelInferRequest, model: Model) -> Tensor:
        model.check_inputs(request.inputs)
        [tensor], raw = request.inputs, request.raw_input_contents
        store, settings = self._service.tensor_store, self._ingress.settings
        where = store.place(parameters(tensor.parameters))
        if len(raw) > 1:
            raise InvalidParameter(f"the request has one input but {len(raw)} raw_input_contents")
        if [where is not None, bool(raw), bool(tensor.contents.ListFields())].count(True) > 1:
            raise InvalidParameter(
                f"{tensor.name!r} is sent in several forms: raw, typed or in shared memory; send one"
            )
        shape = list(tensor.shape[: tensors.MOST_DIMENSIONS + 1])
        if where is not None:
            taken = store.read(where, settings.max_request_bytes)
            return tensors.from_raw(tensor.name, tensor.datatype, shape, taken, settings.max_parts)
        if raw:
            return tensors.from_raw(tensor.name, tensor.datatype, shape, raw[0], settings.max_parts)
        if tensor.datatype == "BYTES":
            # One more than are taken is enough to be refused.
            return Tensor(tensor.name, tensor.datatype, shape, tensor.contents.bytes_contents[: settings.max_parts + 1])
        contents = getattr(tensor.contents, CONTENTS.get(tensor.datatype, ""), ())
        return tensors.from_numbers(tensor.name, tensor.datatype, shape, contents)


def parameters(given: Any) -> dict[str, Any]:
    """Return the values of protobuf's parameters, by name."""
    choices = {name: value.WhichOneof("parameter_choice") for name, value in given.items()}
    return {name: choice and getattr(given[name], choice) for name, choice in choices.items()}
