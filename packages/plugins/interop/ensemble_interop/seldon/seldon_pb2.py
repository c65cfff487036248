"""The messages of `seldon.proto`; their types are in the `.pyi` file beside."""

from ensemble_serving.protocol.pool import define

DESCRIPTOR = define(__file__, globals())
