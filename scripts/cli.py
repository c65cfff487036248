"""The command `ensemble`, with each command of the project as a subcommand.

ensemble serve
ensemble classify tests/cat.jpg
eval "$(ensemble completion)"      # in bash, or in zsh after bashcompinit
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from scripts.shipped import CHECKOUT, hidden

# Options are read from a command's `--help`; files otherwise.
COMPLETION = """_ensemble() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "%s" -- "$word"))
  elif [[ "$word" == -* ]]; then
    local options="$(ensemble "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u)"
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _ensemble ensemble"""


class Command(NamedTuple):
    """A subcommand: the module whose `main` it calls, and one line of help."""

    module: str
    help: str


# Each distribution's table of commands: `COMMANDS` of scripts/commands.py, and of the packages beside it.
ENTRY_POINTS = "ensemble_serving.commands"
# In a checkout: the folders of each distribution, behind the folders of the distributions that it needs.
MODELS = ("packages/client", "packages/plugins/sources", "packages/models")
CAPACITY = (*MODELS, "packages/plugins/features", "packages/plugins/interop", "packages/capacity")
LAB = (*CAPACITY, "lab")
# What this project's other distributions bring.
ELSEWHERE = {
    "ensemble-models": (
        MODELS,
        (
            *("doctor", "classify", "init", "prepare", "quantize", "labels", "calibrate", "check", "tune-cascade"),
            *("shadow", "manifest"),
        ),
    ),
    "ensemble-capacity": (
        CAPACITY,
        ("load", "plan", "tune", "mirror", "trace", "cost"),
    ),
    "ensemble-lab": (
        LAB,
        ("train", "benchmark", "experiments", "faults", "pictures", "reference", "docs"),
    ),
}
# Names of earlier versions, read for one more.
RENAMED = {"overload": "load", "evaluate": "check"}


def groups() -> dict[str, dict[str, Command]]:
    """Find the commands that are installed, by the title of their group; no command's own module is imported.

    A table that can't be imported, and a command whose name is taken, are reported and left out.
    """
    found: dict[str, dict[str, Command]] = {}
    points = metadata.entry_points(group=ENTRY_POINTS)
    order = ["ensemble-serving", *ELSEWHERE]
    for point in sorted(points, key=lambda each: order.index(each.name) if each.name in order else len(order)):
        try:
            table = {
                title: {name: Command(*each) for name, each in group.items()} for title, group in point.load().items()
            }
        except Exception as err:
            print(f"ensemble: the commands of {point.name} are left out: {err!r}", file=sys.stderr)
            continue
        taken = by_name(found)
        for title, group in table.items():
            for name in taken.keys() & group.keys():
                print(f"ensemble: another command {name!r}, of {point.name}, is left out", file=sys.stderr)
            found.setdefault(title, {}).update({name: group[name] for name in group if name not in taken})
    return found


def by_name(found: Mapping[str, Mapping[str, Command]]) -> dict[str, Command]:
    """Join the groups of commands."""
    return {name: command for group in found.values() for name, command in group.items()}


def usage() -> str:
    """List the commands by group, a line each, and the distributions that would bring more."""
    installed = groups()
    there = by_name(installed)
    width = max(map(len, [*there, "completion"])) + 2
    lines = ["usage: ensemble COMMAND ..."]
    for title, group in installed.items():
        lines += ["", f"{title}:", *(f"  {name:{width}}{command.help}" for name, command in group.items())]
    lines += ["", f"  {'completion':{width}}Prints a script that completes commands and options in a shell."]
    for distribution, (_, names) in ELSEWHERE.items():
        if missing := [name for name in names if name not in there]:
            lines += ["", f"Not installed: {distribution}, with {', '.join(missing)}."]
    return "\n".join([*lines, "", "ensemble COMMAND --help says more; ensemble --version prints the version."])


def absent(name: str) -> str:
    """Explain why there is no such command, and what brings it."""
    for distribution, (folders, names) in ELSEWHERE.items():
        if name in names:
            if (CHECKOUT / folders[-1]).is_dir():
                options = " ".join(f"-e {CHECKOUT / folder}" for folder in folders)
                remedy = f"{sys.executable} -m pip install {options}"
            elif distribution == "ensemble-lab":
                remedy = "a checkout of the project has it"
            else:
                remedy = f"install its wheel, `pip install {distribution}`"
            return f"ensemble {name} is part of {distribution}, which is not installed here: {remedy}"
    return f"ensemble: there is no command {name!r}\n\n{usage()}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names."""
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    if name in RENAMED:
        print(f"ensemble {name} is now ensemble {RENAMED[name]}: see its --help", file=sys.stderr)
        name = RENAMED[name]
    if name in {"-h", "--help"}:
        print(usage())
    elif name == "--version":
        print(f"ensemble-serving {metadata.version('ensemble-serving')}")
    elif name == "completion":
        print(COMPLETION % " ".join([*by_name(groups()), "completion"]))
    elif (command := by_name(groups()).get(name)) is None:
        sys.exit(absent(name))
    elif found := hidden():
        place = next(iter(found.values()))
        sys.exit(
            f"ensemble: {place} hides a package of ensemble-serving; take its folder out of PYTHONPATH, or rename it"
        )
    else:
        module = importlib.import_module(command.module)
        # What argparse calls the program.
        sys.argv = [f"ensemble {name}", *rest]
        try:
            module.main()
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
