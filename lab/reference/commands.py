"""The page on the commands, made of their `--help`."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from contextlib import redirect_stdout, suppress
from unittest.mock import patch

from scripts.cli import Command, groups
from scripts.shipped import CHECKOUT

WIDTH = 100
INTRODUCTION = """# Commands

`make serve` installs `ensemble` in `.venv/bin`. Every command of the project is a subcommand of it; `ensemble COMMAND
--help` prints the same text as this page. `eval "$(ensemble completion)"` completes commands and options in bash.

The commands of the group "Models" are the package `ensemble-models`, which `make serve` installs, too, and elsewhere
`pip install 'ensemble-serving[models]'`. The commands of the group "Capacity" come with `pip install -e
packages/capacity`, the commands of "Training" and "Laboratory" with `pip install -e lab`, both in a checkout.

Another distribution adds commands by an entry point of the group `ensemble_serving.commands`. The entry point names a
table such as `COMMANDS` of [`commands.py`](../../packages/capacity/ensemble_capacity/commands.py). By the title of a
group, the table has its commands, each with the module whose `main` is called, and a line of help.
"""


def page() -> str:
    """Write the page: the commands by group."""
    parts = [INTRODUCTION]
    for title, group in groups().items():
        parts.append(f"## {title}\n")
        for name, command in group.items():
            parts.append(f"### ensemble {name}\n\n{command.help}\n\n```text\n{help_of(name, command)}```\n")
    return "\n".join(parts)


def help_of(name: str, command: Command) -> str:
    """Return the text that a command prints for `--help`, without this machine's folders."""
    out = io.StringIO()
    module = importlib.import_module(command.module)
    with (
        patch.object(sys, "argv", [f"ensemble {name}", "--help"]),
        patch.dict(os.environ, {"COLUMNS": str(WIDTH)}),
        redirect_stdout(out),
        suppress(SystemExit),
    ):
        module.main()
    return re.sub(rf"{re.escape(str(CHECKOUT))}/?", "", out.getvalue())
