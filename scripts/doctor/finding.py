"""The result of one check of `ensemble doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "look", "wrong"]


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        verdict: `ok`; `look`, for what may be wrong; or `wrong`, for what can't be served with.
        what: what was checked, and what was found.
        remedy: what to do about it; empty if nothing needs to be done.
    """

    verdict: Verdict
    what: str
    remedy: str = ""
