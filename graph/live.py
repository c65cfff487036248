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
from graph.names import REFUSED

logger = logging.getLogger("ray.serve")

# What a section of `user_config` changes: a node, or several by name. A node that is not `Adjustable` has no settings.
Section = Any | Mapping[str, Any]


class LiveSettings:
    """The settings that change while the application serves, and how many changes were refused."""

    def __init__(self, sections: Mapping[str, Section]) -> None:
        self.refused = 0
        self._groups = {name for name, section in sections.items() if isinstance(section, Mapping)}
        nodes = self._flat(sections)
        self._adjustable = {name: node for name, node in nodes.items() if isinstance(node, Adjustable)}
        self._initial: dict[str, Schema] = {name: node.settings for name, node in self._adjustable.items()}
        self._refusals = Counter(
            "ensemble_config_refused",
            description="Changes of user_config that were refused; the previous configuration stayed in force.",
        )

    def _flat(self, sections: Mapping[str, Any]) -> dict[str, Any]:
        """The nodes, or their changes, by name; those of a group are named `group.name`."""
        flat: dict[str, Any] = {}
        for name, section in sections.items():
            is_group = name in self._groups and isinstance(section, Mapping)
            flat |= {f"{name}.{each}": value for each, value in section.items()} if is_group else {name: section}
        return flat

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Set every node's settings to its initial ones with its changes; a node that is not named has no changes.

        A bad value is logged and counted, and the previous settings stay in force. Nothing is raised: Serve would stop
        a replica that serves well, and could start no other one with this configuration.
        """
        changes = self._flat(changes)
        try:
            complete = {name: changes.get(name, {}) for name in (*self._initial, *changes)}
            accepted = {name: self._validated(name, change) for name, change in complete.items()}
        except ConfigurationError as err:
            logger.error("%s, the previous settings stay in force: %s", REFUSED, err)
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
        if (check := getattr(self._adjustable[name], "check", None)) is not None:
            check(settings)
        return settings
