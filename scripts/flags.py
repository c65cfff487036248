"""The parser of a command line, and the console that commands print to."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Where there is no terminal whose width is known.
WIDTH = 150


def described(doc: str | None, prog: str | None = None) -> argparse.ArgumentParser:
    """Make a parser whose `--help` shows a docstring as it is; `prog` is a command that `ensemble` does not set."""
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def console() -> Console:
    """Make a console as wide as the terminal, or of a fixed width where there is none."""
    # Commands that print no table start without it.
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH)
