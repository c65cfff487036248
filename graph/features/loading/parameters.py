"""The parameters of requests to load or unload a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from deployments.contract.errors import InvalidParameter

VersionNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
# Of a request.
MAX_BYTES = 64 * 1024
CONFIG_HINT = 'config is the JSON {"version_policy": {"specific": {"versions": [n]}}}, or {} for the highest version'


class Specific(msgspec.Struct, forbid_unknown_fields=True):
    """One version."""

    versions: Annotated[list[VersionNumber], msgspec.Meta(min_length=1, max_length=1)]


# The part of a model's configuration, as Triton's clients send it, that loading can change.
Config = dict[Literal["version_policy"], dict[Literal["specific"], Specific]]
DECODER = msgspec.json.Decoder(Config, strict=False)


def version_to_load(parameters: Mapping[str, Any]) -> int | None:
    """Read the version to load from the parameter `version` or Triton's `config`; None for the highest.

    Raises:
        InvalidParameter: there is another parameter, or the version is none.
    """
    _check_known(parameters, "version", "config")
    if "version" in parameters:
        try:
            return msgspec.convert(parameters["version"], VersionNumber, strict=isinstance(parameters["version"], bool))
        except (msgspec.ValidationError, UnicodeError) as err:
            raise InvalidParameter(f"version: {err}") from err
    try:
        config = DECODER.decode(parameters.get("config") or "{}")
    except (msgspec.MsgspecError, TypeError, UnicodeError) as err:
        raise InvalidParameter(f"config: {err}; {CONFIG_HINT}") from err
    specific = config.get("version_policy", {}).get("specific")
    return None if specific is None else specific.versions[0]


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Raise InvalidParameter unless the only parameter is Triton's, which changes nothing: no model depends on one."""
    _check_known(parameters, "unload_dependents")


def _check_known(parameters: Mapping[str, Any], *known: str) -> None:
    if unknown := sorted(set(parameters) - set(known)):
        raise InvalidParameter(
            f"the parameter {unknown[0][:80]!r} is not known here; {list(known)} are, and a model comes from the "
            "server's repository alone"
        )
