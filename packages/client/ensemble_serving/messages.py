"""What the client sends for an image, and what it reads in a response: `/classify`, and `ModelInfer` over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from ensemble_serving.answer import Classification
from ensemble_serving.errors import EnsembleError, error_by_code, errors_by_code
from ensemble_serving.transports import Request, Response
from ensemble_serving.transports.request import Headers

Option = bool | int | float | str
Options = Mapping[str, Option]

_classification = msgspec.json.Decoder(Classification).decode
_classifications = msgspec.json.Decoder(list[Classification]).decode


class OverHttp:
    """`POST /classify`."""

    def __init__(self, prefix: str = "") -> None:
        """Set what comes before `/classify` in the path."""
        self._path = f"{prefix.rstrip('/')}/classify"

    def request(self, image: bytes, options: Options, headers: Headers) -> Request:
        """Make the request for an image's classification."""
        query = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
        path = f"{self._path}?{urlencode(query)}" if query else self._path
        return Request(path, image, (("content-type", "application/octet-stream"), *headers))

    def answer(self, response: Response) -> Classification:
        """Read the classification in a successful response; raise ValueError if there is none."""
        return _classification(response.body)

    def error(self, response: Response) -> EnsembleError:
        """Make the error that a response reports."""
        try:
            error = msgspec.json.decode(response.body)["error"]
            return error_by_code(error["code"], error["message"], error.get("retry_after_ms"))
        except (msgspec.MsgspecError, KeyError, TypeError):
            text = response.body[:200].decode(errors="replace")
            return EnsembleError(f"the server responds with {response.status}: {text}")


class OverGrpc:
    """The Open Inference Protocol's `ModelInfer`; a parameter of its response has what `/classify` answers."""

    PATH = "/inference.GRPCInferenceService/ModelInfer"

    def __init__(self, model: str) -> None:
        """Set the model's name."""
        self._model = model

    def request(self, image: bytes, options: Options, headers: Headers) -> Request:
        """Make the request for an image's classification."""
        from ensemble_serving.protocol import inference_pb2 as pb

        message = pb.ModelInferRequest(model_name=self._model)
        message.inputs.add(name="image", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(len(image).to_bytes(4, "little") + image)
        # Without this one the response has tensors alone.
        for name, value in {"top_k": 1, **options}.items():
            parameter = message.parameters[name]
            if isinstance(value, bool):
                parameter.bool_param = value
            elif isinstance(value, int):
                parameter.int64_param = value
            elif isinstance(value, float):
                parameter.double_param = value
            else:
                parameter.string_param = value
        return Request(self.PATH, message.SerializeToString(), headers)

    def answer(self, response: Response) -> Classification:
        """Read the classification in a successful response; raise ValueError if there is none."""
        from google.protobuf.message import DecodeError

        from ensemble_serving.protocol import inference_pb2 as pb

        try:
            message = pb.ModelInferResponse.FromString(response.body)
        except DecodeError as err:
            raise ValueError(str(err)) from err
        [classification] = _classifications(message.parameters["classifications"].string_param)
        return classification

    def error(self, response: Response) -> EnsembleError:
        """Make the error that a response reports."""
        text = response.body.decode(errors="replace")
        code, _, message = text.partition(": ")
        if code in errors_by_code():
            return error_by_code(code, message)
        return EnsembleError(f"the server responds with status {response.status}: {text}")


# The requests and answers of a protocol.
Messages = OverHttp | OverGrpc
