"""Where a node runs: in its caller's process, or in a Serve deployment of its own. The caller awaits both the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from ray.serve.handle import DeploymentHandle
from ray.serve.metrics import Counter

from graph.config import Schema, describe
from graph.ensemble import Node
from graph.errors import ConfigurationError
from graph.metrics import report_state

logger = logging.getLogger("ray.serve")

# Makes a node; called in the process where it is to run.
Factory = Callable[[], Any]


class NodeDeployment:
    """The deployment that a separate node runs in."""

    def __init__(self, name: str, factory: Factory) -> None:
        """Make the node here, in the replica."""
        self.node = factory()
        self._settings = LiveSettings({name: self.node})
        report_state({name: self.node})

    async def __call__(self, batch: Any) -> Any:
        """Whatever the node takes and returns."""
        return await self.node(batch)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a changed `user_config`: the fields of the node's settings."""
        [name] = self._settings.nodes
        self._settings.apply({name: user_config})

    def check_health(self) -> None:
        """Raise if the node says that it can't work any more."""
        check_health(self.node)


class Remote:
    """A node in another process, awaited like one in this."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        """Set the handle of the node's deployment."""
        self._handle = handle

    async def __call__(self, batch: Any) -> Any:
        """Send the batch, wait for the node's."""
        response = self._handle.remote(batch)
        try:
            return await response
        except asyncio.CancelledError:
            # Or the node would work on for nobody, while the next batch waits.
            response.cancel()  # type: ignore[no-untyped-call]
            raise


def place(where: DeploymentHandle[Any] | Factory) -> Node:
    """The node behind a handle, or a new one in this process."""
    if isinstance(where, DeploymentHandle):
        return Remote(where)
    node: Node = where()
    return node


def check_health(node: Any) -> None:
    """Ask a node that has something to say on its health; it raises if it is not well."""
    if hasattr(node, "check_health"):
        node.check_health()


class LiveSettings:
    """Applies `user_config` to the nodes of a process: all of it or none."""

    def __init__(self, nodes: dict[str, Any]) -> None:
        """Set the nodes, by name; each with a `settings` attribute has some."""
        self.nodes = nodes
        self.refused = 0
        self._initial = {name: node.settings for name, node in nodes.items() if hasattr(node, "settings")}
        self._refusals = Counter(
            "ensemble_config_refused",
            description="Changes of user_config that were refused; the configuration before went on.",
        )

    def apply(self, changes: dict[str, Any]) -> None:
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
            if settings != self.nodes[name].settings:
                self.nodes[name].settings = settings
                logger.info("settings of %s: %s", name, settings)

    def _validated(self, name: str, change: Any) -> Schema:
        if name not in self._initial:
            raise ConfigurationError(f"{name} takes no user_config; those that do: {sorted(self._initial)}")
        initial = self._initial[name]
        try:
            settings: Schema = type(initial).model_validate({**initial.model_dump(), **change})
        except (ValidationError, TypeError) as err:
            detail = describe(err) if isinstance(err, ValidationError) else "a mapping of field to value is needed"
            raise ConfigurationError(f"{name}: {detail}") from err
        if hasattr(self.nodes[name], "check"):
            self.nodes[name].check(settings)
        return settings
