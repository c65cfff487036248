"""The messages of `tensorflow_serving.proto`; their types are in the `.pyi` file beside."""

from deployments.protocol.pool import define

DESCRIPTOR = define("tensorflow_serving.proto", globals())
