"""gRPC: the Open Inference Protocol's `inference.GRPCInferenceService`."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import msgspec
from google.protobuf import json_format
from ray.serve.grpc_util import RayServegRPCContext

from deployments.contract.caller import caller
from deployments.contract.errors import EnsembleError, ImageTooLarge, InvalidParameter
from deployments.ingress import open_inference, options
from deployments.ingress.service import Service
from deployments.observe.observer import Call
from deployments.protocol import inference_pb2 as pb

# https://opentelemetry.io/docs/specs/semconv/rpc/
CALL = {"rpc.system.name": "grpc", "rpc.method": "inference.GRPCInferenceService/ModelInfer"}


def set_error(context: RayServegRPCContext, error: EnsembleError) -> None:
    """Answer with the error's status; returned, not raised, or Serve would log a client's mistake with a traceback."""
    context.set_code(grpc.StatusCode[error.grpc_status])
    context.set_details(f"{error.code}: {error.message}")
    if error.retry_after_s is not None:
        # https://github.com/grpc/proposal/blob/master/A6-client-retries.md
        context.set_trailing_metadata([("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000)))])


class OpenInference:
    """Answers the protocol's calls from an ingress; each returns an empty message where it set an error."""

    def __init__(self, service: Service) -> None:
        """Set what is served."""
        self._service = service
        self._ingress = service.ingress
        self._access = service.access
        self._metadata = pb.ModelMetadataResponse()
        json_format.ParseDict(msgspec.to_builtins(open_inference.metadata(service.class_count)), self._metadata)

    def server_live(self) -> pb.ServerLiveResponse:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    def server_ready(self) -> pb.ServerReadyResponse:
        """Every member has answered once since the start."""
        return pb.ServerReadyResponse(ready=self._service.is_ready())

    def server_metadata(self, context: RayServegRPCContext) -> pb.ServerMetadataResponse:
        """The server's name and version."""
        try:
            self._admit(context)
        except EnsembleError as err:
            set_error(context, err)
            return pb.ServerMetadataResponse()
        return pb.ServerMetadataResponse(**msgspec.to_builtins(open_inference.SERVER))

    def model_ready(self, request: pb.ModelReadyRequest, context: RayServegRPCContext) -> pb.ModelReadyResponse:
        """Whether the ensemble is ready; NOT_FOUND for another model."""
        try:
            open_inference.check_model(request.name, request.version)
        except EnsembleError as err:
            set_error(context, err)
            return pb.ModelReadyResponse()
        return pb.ModelReadyResponse(ready=self._service.is_ready())

    def model_metadata(
        self, request: pb.ModelMetadataRequest, context: RayServegRPCContext
    ) -> pb.ModelMetadataResponse:
        """The ensemble's inputs and outputs; NOT_FOUND for another model."""
        try:
            self._admit(context)
            open_inference.check_model(request.name, request.version)
        except EnsembleError as err:
            set_error(context, err)
            return pb.ModelMetadataResponse()
        return self._metadata

    async def model_infer(self, request: pb.ModelInferRequest, context: RayServegRPCContext) -> pb.ModelInferResponse:
        """Classify the images of a request; raw contents are answered raw, typed contents typed."""
        metadata = dict(context.invocation_metadata())
        known = {**CALL, "ensemble.request.id": metadata.get("request_id", "")}
        with self._ingress.observer.call("grpc", metadata, known) as call:
            try:
                call.caller = caller(metadata, self._admit(context), self._ingress.settings.fair_by)
                response = await self._infer(request, call)
                call.attributes["rpc.response.status_code"] = grpc.StatusCode.OK.name
            except EnsembleError as err:
                call.fail(err)
                call.attributes["rpc.response.status_code"] = err.grpc_status
                set_error(context, err)
                response = pb.ModelInferResponse()
            return response

    def _admit(self, context: RayServegRPCContext) -> str:
        """The name of the key of a call, empty without keys; raise Unauthenticated or RateLimited if it has none."""
        if self._access is None:
            return ""
        return self._access.admit(dict(context.invocation_metadata()).get("authorization"))

    async def _infer(self, request: pb.ModelInferRequest, call: Call) -> pb.ModelInferResponse:
        open_inference.check_model(request.model_name, request.model_version)
        limit = self._ingress.settings.max_request_bytes
        if (size := request.ByteSize()) > limit:
            raise ImageTooLarge(f"the request has {size} bytes; at most {limit} are accepted")
        images = self._images(request)
        names = open_inference.check_outputs([output.name for output in request.outputs])
        parameters = {name: _parameter(value) for name, value in request.parameters.items()}
        asked = options.from_parameters(parameters)
        answers = open_inference.succeeded(
            await self._ingress.classify(images, asked, trace=call.trace, by=call.caller)
        )
        response = pb.ModelInferResponse(
            model_name=open_inference.MODEL, model_version=open_inference.VERSION, id=request.id
        )
        for name, value in open_inference.response_parameters(answers, parameters).items():
            response.parameters[name].string_param = value
        for tensor in open_inference.tensors(answers, names):
            output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            if request.raw_input_contents:
                response.raw_output_contents.append(_raw(tensor))
            else:
                _fill(output.contents, tensor)
        return response

    def _images(self, request: pb.ModelInferRequest) -> list[bytes]:
        open_inference.check_inputs([(tensor.name, tensor.datatype) for tensor in request.inputs])
        [tensor], raw = request.inputs, request.raw_input_contents
        if len(raw) > 1:
            raise InvalidParameter(f"the request has one input but {len(raw)} raw_input_contents")
        images = _split(raw[0], self._ingress.settings.max_parts) if raw else tensor.contents.bytes_contents
        self._ingress.check_count(len(images))
        open_inference.check_shape(list(tensor.shape), len(images))
        return list(images)


def _split(raw: bytes, most: int) -> list[bytes]:
    """BYTES elements of a raw tensor, at most one more than `most`: each its length, 4 bytes little-endian, and it."""
    elements: list[bytes] = []
    offset = 0
    while offset < len(raw) and len(elements) <= most:
        end = offset + 4 + int.from_bytes(raw[offset : offset + 4], "little")
        if offset + 4 > len(raw) or end > len(raw):
            raise InvalidParameter("raw_input_contents ends within an element; each is a 4-byte length and its bytes")
        elements.append(raw[offset + 4 : end])
        offset = end
    return elements


def _parameter(parameter: pb.InferParameter) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _raw(tensor: open_inference.Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        encoded = [text.encode() for text in tensor.data]
        return b"".join(struct.pack("<I", len(element)) + element for element in encoded)
    return bytes(tensor.data.tobytes())


def _fill(contents: pb.InferTensorContents, tensor: open_inference.Tensor) -> None:
    if tensor.datatype == "BYTES":
        contents.bytes_contents.extend(text.encode() for text in tensor.data)
    elif tensor.datatype == "INT64":
        contents.int64_contents.extend(tensor.data.tolist())
    else:
        contents.fp32_contents.extend(tensor.data.ravel().tolist())
