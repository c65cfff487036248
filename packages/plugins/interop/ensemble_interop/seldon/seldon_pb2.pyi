from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as _tensorflow_serving_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SeldonMessage(_message.Message):
    __slots__ = ("status", "meta", "data", "binData", "strData")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BINDATA_FIELD_NUMBER: _ClassVar[int]
    STRDATA_FIELD_NUMBER: _ClassVar[int]
    status: Status
    meta: Meta
    data: DefaultData
    binData: bytes
    strData: str
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., meta: _Optional[_Union[Meta, _Mapping]] = ..., data: _Optional[_Union[DefaultData, _Mapping]] = ..., binData: _Optional[bytes] = ..., strData: _Optional[str] = ...) -> None: ...

class DefaultData(_message.Message):
    __slots__ = ("names", "tensor", "ndarray", "tftensor")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    NDARRAY_FIELD_NUMBER: _ClassVar[int]
    TFTENSOR_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    tensor: Tensor
    ndarray: _struct_pb2.ListValue
    tftensor: _tensorflow_serving_pb2.TensorProto
    def __init__(self, names: _Optional[_Iterable[str]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., ndarray: _Optional[_Union[_struct_pb2.ListValue, _Mapping]] = ..., tftensor: _Optional[_Union[_tensorflow_serving_pb2.TensorProto, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("shape", "values")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class Meta(_message.Message):
    __slots__ = ("puid", "tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    PUID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    puid: str
    tags: _containers.MessageMap[str, _struct_pb2.Value]
    def __init__(self, puid: _Optional[str] = ..., tags: _Optional[_Mapping[str, _struct_pb2.Value]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "info", "reason", "status")
    class StatusFlag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[Status.StatusFlag]
        FAILURE: _ClassVar[Status.StatusFlag]
    SUCCESS: Status.StatusFlag
    FAILURE: Status.StatusFlag
    CODE_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    code: int
    info: str
    reason: str
    status: Status.StatusFlag
    def __init__(self, code: _Optional[int] = ..., info: _Optional[str] = ..., reason: _Optional[str] = ..., status: _Optional[_Union[Status.StatusFlag, str]] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("request", "response", "reward", "truth")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    request: SeldonMessage
    response: SeldonMessage
    reward: float
    truth: SeldonMessage
    def __init__(self, request: _Optional[_Union[SeldonMessage, _Mapping]] = ..., response: _Optional[_Union[SeldonMessage, _Mapping]] = ..., reward: _Optional[float] = ..., truth: _Optional[_Union[SeldonMessage, _Mapping]] = ...) -> None: ...
