"""What the doctor finds."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "look", "wrong"]


class Finding(NamedTuple):
    """One line.

    Attributes:
        verdict: `ok`; `look`, which is worth a look; or `wrong`, with which it can't serve.
        what: what was looked at, and what is there.
        remedy: what to do about it; empty if nothing needs to be done.
    """

    verdict: Verdict
    what: str
    remedy: str = ""
