"""What a request to load or unload a model asks for, by its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from deployments.contract.errors import InvalidParameter

VersionNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
# Of a request.
MOST_BYTES = 64 * 1024
CONFIG_HINT = 'config is the JSON {"version_policy": {"specific": {"versions": [n]}}}, or {} for the highest version'


class Specific(msgspec.Struct, forbid_unknown_fields=True):
    """One version."""

    versions: Annotated[list[VersionNumber], msgspec.Meta(min_length=1, max_length=1)]


class Policy(msgspec.Struct, forbid_unknown_fields=True):
    """Which versions; of Triton's policies the one that a member can follow."""

    specific: Specific | None = None


class Config(msgspec.Struct, forbid_unknown_fields=True):
    """Of a model's configuration, as Triton's clients send it, what loading can change."""

    version_policy: Policy | None = None


def version_to_load(parameters: Mapping[str, Any]) -> int | None:
    """The version that a request to load names, by `version` or by Triton's `config`; None for the highest.

    Raises:
        InvalidParameter: it names another parameter, or no version.
    """
    _check_known(parameters, "version", "config")
    if "version" in parameters:
        try:
            return msgspec.convert(parameters["version"], VersionNumber, strict=isinstance(parameters["version"], bool))
        except msgspec.ValidationError as err:
            raise InvalidParameter(f"version: {err}") from err
    try:
        config = msgspec.json.decode(parameters.get("config") or "{}", type=Config, strict=False)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as err:
        raise InvalidParameter(f"config: {err}; {CONFIG_HINT}") from err
    policy = config.version_policy
    return policy.specific.versions[0] if policy is not None and policy.specific is not None else None


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for a parameter that a request to unload can't have; nothing depends on a member."""
    _check_known(parameters, "unload_dependents")


def _check_known(parameters: Mapping[str, Any], *known: str) -> None:
    if unknown := sorted(set(parameters) - set(known)):
        raise InvalidParameter(
            f"the parameter {unknown[0][:80]!r} is not known here; {list(known)} are, and a model comes from the "
            "server's repository alone"
        )
