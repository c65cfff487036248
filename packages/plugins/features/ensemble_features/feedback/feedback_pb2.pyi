from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LabelRequest(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[TrueLabel]
    def __init__(self, labels: _Optional[_Iterable[_Union[TrueLabel, _Mapping]]] = ...) -> None: ...

class TrueLabel(_message.Message):
    __slots__ = ("request_id", "name", "index", "image")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    name: str
    index: int
    image: int
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., index: _Optional[int] = ..., image: _Optional[int] = ...) -> None: ...

class LabelResponse(_message.Message):
    __slots__ = ("accepted", "results")
    class Result(_message.Message):
        __slots__ = ("code", "message")
        CODE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        code: str
        message: str
        def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    results: _containers.RepeatedCompositeFieldContainer[LabelResponse.Result]
    def __init__(self, accepted: _Optional[int] = ..., results: _Optional[_Iterable[_Union[LabelResponse.Result, _Mapping]]] = ...) -> None: ...
