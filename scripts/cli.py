"""The command `ensemble`, with each command of the project as a subcommand.

ensemble serve
ensemble classify tests/cat.jpg
eval "$(ensemble completion)"      # in bash, or in zsh after bashcompinit
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from scripts.home import ensure_home
from scripts.shipped import hidden

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
# Whose commands come first, in this order.
FIRST = ("ensemble-serving", "ensemble-models", "ensemble-capacity")


def groups() -> dict[str, dict[str, Command]]:
    """Find the commands that are installed, by the title of their group; no command's own module is imported.

    A table that can't be imported, and a command whose name is taken, are reported and left out.
    """
    found: dict[str, dict[str, Command]] = {}
    points = metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(points, key=lambda each: FIRST.index(each.name) if each.name in FIRST else len(FIRST)):
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
    """List the commands by group, a line each, and the distributions that are not installed."""
    # Imported here: `main` explains where other code hides this project's packages.
    from deployments.entry_points import not_installed

    installed, missing = groups(), not_installed()
    width = max(map(len, [*by_name(installed), "completion"])) + 2
    lines = ["usage: ensemble COMMAND ..."]
    for title, group in installed.items():
        lines += ["", f"{title}:", *(f"  {name:{width}}{command.help}" for name, command in group.items())]
    lines += ["", f"  {'completion':{width}}Prints a script that completes commands and options in a shell.", ""]
    return "\n".join([*lines, f"ensemble COMMAND --help says more; ensemble --version prints the version{missing}"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names; Ctrl-C ends it by status 130, while it is imported, too."""
    try:
        _run(*(arguments if arguments is not None else sys.argv[1:] or ["--help"]))
    except KeyboardInterrupt:
        sys.exit(130)


def _run(name: str, *rest: str) -> None:
    if name in {"-h", "--help"}:
        print(usage())
    elif name == "--version":
        print(f"ensemble-serving {metadata.version('ensemble-serving')}")
    elif name == "completion":
        print(COMPLETION % " ".join([*by_name(groups()), "completion"]))
    elif (command := by_name(groups()).get(name)) is None:
        sys.exit(f"ensemble: there is no command {name!r}\n\n{usage()}")
    elif found := hidden():
        place = next(iter(found.values()))
        sys.exit(
            f"ensemble: {place} hides a package of ensemble-serving; take its folder out of PYTHONPATH, or rename it"
        )
    else:
        try:
            ensure_home()
        except OSError as err:
            sys.exit(f"ensemble: {err}")
        module = importlib.import_module(command.module)
        # What argparse calls the program.
        sys.argv = [f"ensemble {name}", *rest]
        module.main()


if __name__ == "__main__":
    main()
