"""The messages of `seldon.proto`; their types are in the `.pyi` file beside."""

from deployments.protocol.pool import define

DESCRIPTOR = define("seldon.proto", globals())
