"""The messages of `feedback.proto`; their types are in the `.pyi` file beside."""

from deployments.protocol.pool import define

DESCRIPTOR = define("feedback.proto", globals())
