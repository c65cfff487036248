"""Checks this machine and a configuration: `ensemble doctor`."""

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from scripts.errors import ScriptError

Verdict = Literal["ok", "look", "wrong"]
# What is between the two parts of an error's message: the finding, and the remedy.
BEHIND = re.compile(r"[;.] ")


class Finding(NamedTuple):
    """The result of one check: its verdict, the finding, and a remedy, empty if none is needed.

    `look` is for what may be wrong, and `wrong` for what can't be served with.
    """

    verdict: Verdict
    what: str
    remedy: str = ""


def failure(check: Callable[[], object], topic: str = "", remedy: str = "") -> Finding | None:
    """Return the finding of a failed check, with a remedy in place of its own; None if it passes."""
    try:
        check()
    except (ScriptError, OSError) as err:
        what, *own = BEHIND.split(str(err), maxsplit=1)
        return Finding("wrong", f"{topic}{what}", remedy or "".join(own))
    return None
