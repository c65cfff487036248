"""Checks this machine and a configuration: `ensemble doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "look", "wrong"]


class Finding(NamedTuple):
    """The result of one check: its verdict, the finding, and a remedy, empty if none is needed.

    `look` is for what may be wrong, and `wrong` for what can't be served with.
    """

    verdict: Verdict
    what: str
    remedy: str = ""
