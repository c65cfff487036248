"""The messages of `inference.proto`; their types are in the `.pyi` file beside."""

from deployments.protocol.pool import define

DESCRIPTOR = define("inference.proto", globals())
