"""Applies `user_config` to the nodes of a process: all of it or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from ray.serve.metrics import Counter

from deployments.contract.errors import ConfigurationError
from deployments.contract.nodes import Adjustable
from deployments.contract.settings import Schema, describe

logger = logging.getLogger("ray.serve")


class LiveSettings:
    """The settings that change while the application serves."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        """Set the nodes, by name; each that is `Adjustable` has settings."""
        self.nodes = nodes
        self.refused = 0
        self._adjustable = {name: node for name, node in nodes.items() if isinstance(node, Adjustable)}
        self._initial: dict[str, Schema] = {name: node.settings for name, node in self._adjustable.items()}
        self._refusals = Counter(
            "ensemble_config_refused",
            description="Changes of user_config that were refused; the configuration before went on.",
        )

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Replace every node's settings by its initial ones with its changes; a node that isn't named has none.

        A bad value is logged and counted and the settings before go on. It is not raised: Serve would stop a replica
        that serves well, and could start no other one while the value stands.
        """
        try:
            complete = {name: changes.get(name, {}) for name in (*self._initial, *changes)}
            accepted = {name: self._validated(name, change) for name, change in complete.items()}
        except ConfigurationError as err:
            logger.error("user_config refused, the settings before go on: %s", err)
            self.refused += 1
            self._refusals.inc()
            return
        for name, settings in accepted.items():
            if settings != self._adjustable[name].settings:
                self._adjustable[name].settings = settings
                logger.info("settings of %s: %s", name, settings)

    def _validated(self, name: str, change: Any) -> Schema:
        if name not in self._initial:
            raise ConfigurationError(f"{name} takes no user_config; those that do: {sorted(self._initial)}")
        initial = self._initial[name]
        try:
            settings = type(initial).model_validate({**initial.model_dump(), **change})
        except (ValidationError, TypeError) as err:
            detail = describe(err) if isinstance(err, ValidationError) else "a mapping of field to value is needed"
            raise ConfigurationError(f"{name}: {detail}") from err
        self._adjustable[name].check(settings)
        return settings
