"""A client of `inference.GRPCInferenceService`, as generated code has it."""

from google.protobuf.message_factory import GetMessageClass

from deployments.ingress.open_inference.grpc import SERVICE


class GRPCInferenceServiceStub:
    """A method of a client for each of the service's, over a channel of grpc or of grpc.aio."""

    def __init__(self, channel):
        for method in SERVICE.methods:
            asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            path = f"/{SERVICE.full_name}/{method.name}"
            call = channel.unary_unary(path, asked.SerializeToString, answered.FromString)
            setattr(self, method.name, call)
