"""A client of `inference.GRPCInferenceService`, as generated code has it."""

from google.protobuf.message_factory import GetMessageClass

from deployments.protocol.services import OPEN_INFERENCE


class GRPCInferenceServiceStub:
    """A method of a client for each of the service's, over a channel of grpc or of grpc.aio."""

    def __init__(self, channel):
        for method in OPEN_INFERENCE.methods:
            asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            path = f"/{OPEN_INFERENCE.full_name}/{method.name}"
            call = channel.unary_unary(path, asked.SerializeToString, answered.FromString)
            setattr(self, method.name, call)
