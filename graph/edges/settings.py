"""The field `edges`: how a separate node is called."""

from __future__ import annotations

from typing import Literal

Edges = Literal["direct", "handle"]
