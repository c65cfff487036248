"""The arguments of the application: read by their schema, and checked against each other."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from deployments.contract.errors import ConfigurationError
from deployments.contract.settings import problems
from graph.schema import EnsembleConfig

__all__ = ["EnsembleConfig", "parse"]


def parse(args: dict[str, Any]) -> EnsembleConfig:
    """Validate the arguments of the application.

    Raises:
        ConfigurationError: it names each wrong field, its value, and the allowed values.
    """
    try:
        config = EnsembleConfig.model_validate(args)
    except ValidationError as err:
        raise ConfigurationError(*problems(err, root=args)) from err
    if refused := [str(fault) for fault in config.faults() if fault.is_refused]:
        raise ConfigurationError(*refused)
    return config
