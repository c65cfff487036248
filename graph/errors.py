"""The errors that a caller can get, and `ConfigurationError`, from `deployments.contract.errors`."""

from deployments.contract import errors
from deployments.contract.errors import *  # noqa: F403

__all__ = [name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)]
