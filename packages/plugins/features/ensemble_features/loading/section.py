"""The section of `access` that lets operators load and unload members."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from deployments.contract.sections import Fault, Section
from deployments.contract.settings import Name, Schema
from deployments.ingress.access import AccessConfig
from ensemble_features.loading.flow import LoadingSettings

# Names of keys, or everybody.
Operators = tuple[Name, ...] | Literal["anyone"]
# The section of `user_config`.
SECTION = "loading"


class OperatorsSection(Section):
    """The field of `access`."""

    at: ClassVar[str] = "access"

    operators: Operators = Field(
        (),
        description="who may load and unload members: names of keys, or `anyone` where there are none; default: nobody",
    )

    def rules(self, access: AccessConfig, config: object, agreed: object) -> Iterator[Fault]:
        """Find operators that can't be known by their keys."""
        if self.operators == "anyone" and access.keys is not None:
            yield Fault("operators: anyone, but there are keys", "list the names of the keys that may", is_refused=True)
        if self.operators not in ((), "anyone") and access.keys is None:
            hint = "without keys say `anyone`"
            yield Fault("operators: names of keys need `keys`, a file that has them", hint, is_refused=True)

    def live(self, access: AccessConfig) -> Mapping[str, Schema]:
        """Return the members that are loaded: all."""
        return {SECTION: LoadingSettings()} if self.operators else {}
