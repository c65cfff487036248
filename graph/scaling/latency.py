"""The earlier place of `ensemble_features.scaling`, for one release."""

from typing import Any

from deployments.entry_points import find


def __getattr__(name: str) -> Any:
    return find("", f"ensemble_features.scaling:{name}")
