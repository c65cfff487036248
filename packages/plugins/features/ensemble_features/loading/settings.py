"""The section `loading` of `user_config`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deployments.contract.settings import Name, Schema


class LoadingSettings(Schema):
    """The members that clients have loaded and unloaded."""

    unloaded: tuple[Name, ...] = Field((), max_length=64, description="members that are not called")
    loaded: dict[Name, Annotated[int, Field(ge=1)]] = Field(
        {}, max_length=64, description="the version that was loaded last, by member"
    )
