"""Metadata of the server and of its models, as the protocol has them."""

import msgspec

SERVER = "ensemble"
# Of the model `ensemble`, whose interface it stands for.
VERSION = "1"
EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "parameters", "statistics")
# The name of each datatype in a model's configuration.
CONFIGURED = {"BYTES": "TYPE_STRING"}


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor that a model takes or gives; -1 stands for any extent."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True):
    """A model's inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(msgspec.Struct, frozen=True):
    """The server's name, version and the extensions of the protocol that it has."""

    name: str
    version: str
    extensions: list[str]


class TensorConfig(msgspec.Struct, frozen=True):
    """A tensor of a model's configuration; without the batch's dimension where `max_batch_size` is above 0."""

    name: str
    data_type: str
    dims: list[int]


class TransactionPolicy(msgspec.Struct, frozen=True):
    """Whether a request may have more than one answer; none may."""

    decoupled: bool = False


class ModelConfig(msgspec.Struct, frozen=True):
    """A model's configuration: the fields of Triton's that apply here."""

    name: str
    platform: str
    max_batch_size: int
    input: list[TensorConfig]
    output: list[TensorConfig]
    backend: str = "openvino"
    model_transaction_policy: TransactionPolicy = TransactionPolicy()


class IndexEntry(msgspec.Struct, frozen=True):
    """A model of the repository, and whether it is ready."""

    name: str
    version: str
    state: str
    reason: str


def config(model: ModelMetadata, max_batch_size: int) -> ModelConfig:
    """Return the configuration of a model that has this metadata."""

    def tensors(listed: list[TensorMetadata]) -> list[TensorConfig]:
        first = 1 if max_batch_size else 0
        return [
            TensorConfig(each.name, CONFIGURED.get(each.datatype, f"TYPE_{each.datatype}"), each.shape[first:])
            for each in listed
        ]

    return ModelConfig(model.name, model.platform, max_batch_size, tensors(model.inputs), tensors(model.outputs))
