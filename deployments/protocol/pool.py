"""The messages of the `.proto` files, in a descriptor pool of their own.

A pool holds each name once, and clients such as `tritonclient` add their own copy of `inference.proto` to protobuf's
default pool. With two pools, both copies can be used in one process. `descriptors.binpb` is what `make proto` compiles.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

FILES = FileDescriptorSet.FromString(Path(__file__).with_name("descriptors.binpb").read_bytes())
POOL = descriptor_pool.DescriptorPool()
for _file in FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())


def define(name: str, module: dict[str, Any]) -> FileDescriptor:
    """Define the message classes and the enumerations' values of a `.proto` file in a module; return its descriptor."""
    file = POOL.FindFileByName(f"deployments/protocol/{name}")
    module.update({name: GetMessageClass(message) for name, message in file.message_types_by_name.items()})
    for enumeration in file.enum_types_by_name.values():
        module.update({value.name: value.number for value in enumeration.values})
    return file


def add_to_default_pool() -> None:
    """Add the files to protobuf's default pool, where Serve's gRPC reflection looks; another copy there is kept."""
    for file in FILES.file:
        with suppress(TypeError):
            descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
