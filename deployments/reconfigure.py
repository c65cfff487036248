"""Applies `user_config`, section by section, to the nodes of a process: all of it or none."""

import logging
from collections.abc import Mapping
from typing import Any

from deployments.contract.counting import TaggedCounter
from deployments.contract.errors import ConfigurationError
from deployments.contract.names import REFUSED
from deployments.contract.nodes import Adjustable
from deployments.contract.settings import Schema, changed, flat

logger = logging.getLogger("ray.serve")

# What a section of `user_config` changes: a node, or several by name. A node that is not `Adjustable` has no settings.
Section = Any | Mapping[str, Any]


class LiveSettings:
    """The settings that change while the application serves, and how many changes were refused."""

    def __init__(self, sections: Mapping[str, Section]) -> None:
        self.refused = 0
        self._groups = {name for name, section in sections.items() if isinstance(section, Mapping)}
        nodes = flat(sections, self._groups)
        self._adjustable = {name: node for name, node in nodes.items() if isinstance(node, Adjustable)}
        self._initial: dict[str, Schema] = {name: node.settings for name, node in self._adjustable.items()}
        self._refusals = TaggedCounter(
            "ensemble_config_refused",
            "Changes of user_config that were refused; the previous configuration stayed in force.",
        )

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Set every node's settings to its initial ones with its changes; a node that is not named has no changes.

        A bad value is logged and counted, and the previous settings stay in force. Nothing is raised: Serve would stop
        a replica that serves well, and could start no other one with this configuration.
        """
        changes = flat(changes, self._groups)
        try:
            complete = {name: changes.get(name, {}) for name in (*self._initial, *changes)}
            accepted = {name: self._validated(name, change) for name, change in complete.items()}
        except ConfigurationError as err:
            logger.error("%s, the previous settings stay in force: %s", REFUSED, err)
            self.refused += 1
            self._refusals.add()
            return
        for name, settings in accepted.items():
            if settings != self._adjustable[name].settings:
                self._adjustable[name].settings = settings
                logger.info("settings of %s: %s", name, settings)

    def _validated(self, name: str, change: Any) -> Schema:
        settings = changed(name, change, self._initial)
        if (check := getattr(self._adjustable[name], "check", None)) is not None:
            check(settings)
        return settings
