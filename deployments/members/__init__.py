"""The kinds of members: this project's, one file each, and the kinds of plugins."""

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializeAsAny
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from deployments.contract.member import MemberConfig
from deployments.entry_points import MEMBERS, find_class, names

DEFAULT = "openvino"


class ByKind:
    """Validates a member as the class that its field `kind` names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_member, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        known = sorted(names(MEMBERS), key=DEFAULT.__ne__)
        kinds = {name: find_class(MEMBERS, name, MemberConfig).__pydantic_core_schema__ for name in known}
        return handler(core_schema.tagged_union_schema(kinds, discriminator="kind"))


def _member(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    kind = given.get("kind", DEFAULT)
    try:
        found = find_class(MEMBERS, str(kind), MemberConfig)
    except ValueError as err:
        raise ValueError(f"kind: {err}") from err
    return found.model_validate(given)


Member = Annotated[SerializeAsAny[MemberConfig], ByKind()]
