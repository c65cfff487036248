"""The errors a caller can get, by their public names; each is defined in `deployments.contract.errors`."""

from deployments.contract.errors import (
    ClientMistake,
    ConfigurationError,
    DeadlineExceeded,
    EnsembleError,
    ImageTooLarge,
    InferenceFailed,
    InvalidImage,
    InvalidParameter,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    RateLimited,
    SlowBody,
    Unauthenticated,
    UnsupportedMediaType,
)

__all__ = [
    "ClientMistake",
    "ConfigurationError",
    "DeadlineExceeded",
    "EnsembleError",
    "ImageTooLarge",
    "InferenceFailed",
    "InvalidImage",
    "InvalidParameter",
    "MethodNotAllowed",
    "NotFound",
    "NotReady",
    "Overloaded",
    "RateLimited",
    "SlowBody",
    "Unauthenticated",
    "UnsupportedMediaType",
]
