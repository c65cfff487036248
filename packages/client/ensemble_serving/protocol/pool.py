"""The messages of `.proto` files, in a descriptor pool of their own.

A pool holds each name once, and clients such as `tritonclient` add their own copy of `inference.proto` to protobuf's
default pool. With two pools, both copies can be used in one process. `make proto` compiles the `.proto` files of a
folder into its `descriptors.binpb`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

FILES: list[FileDescriptorProto] = []
POOL = descriptor_pool.DescriptorPool()


@cache
def _add(folder: Path) -> None:
    """Add a folder's compiled descriptors."""
    for file in FileDescriptorSet.FromString((folder / "descriptors.binpb").read_bytes()).file:
        FILES.append(file)
        POOL.AddSerializedFile(file.SerializeToString())


def define(path: str, module: dict[str, Any]) -> FileDescriptor:
    """Define the message classes and the enumerations' values of a `.proto` file; return its descriptor.

    Args:
        path: the file of the module, `<name>_pb2.py`, beside `<name>.proto`.
        module: its namespace.
    """
    folder = Path(path).parent
    _add(folder)
    name = Path(path).stem.removesuffix("_pb2")
    # A file is named by its path from the folder that it was compiled in.
    file = POOL.FindFileByName(next(each.name for each in FILES if each.name.endswith(f"{folder.name}/{name}.proto")))
    module.update({name: GetMessageClass(message) for name, message in file.message_types_by_name.items()})
    for enumeration in file.enum_types_by_name.values():
        module.update({value.name: value.number for value in enumeration.values})
    return file


def add_to_default_pool() -> None:
    """Add the files to protobuf's default pool, where Serve's gRPC reflection looks; another copy there is kept."""
    for file in FILES:
        with suppress(TypeError):
            descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
