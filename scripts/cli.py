"""The command `ensemble`: each command of this folder as a subcommand.

    ensemble serve
    ensemble classify tests/cat.jpg
    ensemble doctor
    eval "$(ensemble completion)"      # in bash, or in zsh after bashcompinit

`python -m scripts.<name>` does the same.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
# Options are read from what a command says of itself; files otherwise.
COMPLETION = """_ensemble() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "%s" -- "$word"))
  elif [[ "$word" == -* ]]; then
    local told="$(ensemble "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)"
    COMPREPLY=($(compgen -W "$told" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _ensemble ensemble"""


def commands() -> dict[str, Path]:
    """The file of each command by its name: those that can be run."""
    files = {file.parent.name: file for file in FOLDER.glob("*/__main__.py")}
    files |= {file.stem: file for file in FOLDER.glob("*.py") if file != Path(__file__)}
    runnable = {name: file for name, file in files.items() if '__name__ == "__main__"' in file.read_text("utf-8")}
    return {name.replace("_", "-"): file for name, file in sorted(runnable.items())}


def summary(file: Path) -> str:
    """The first line of what a command says of itself."""
    told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return told.partition("\n")[0].partition(": `python")[0]


def usage() -> str:
    """What there is."""
    found = commands()
    width = max(map(len, found)) + 2
    lines = [f"  {name:{width}}{summary(file)}" for name, file in found.items()]
    lines.append(f"  {'completion':{width}}Prints what completes the others in a shell.")
    return "usage: ensemble COMMAND ...\n\n" + "\n".join(lines) + "\n\nensemble COMMAND --help says more."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names."""
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    found = commands()
    if name in {"-h", "--help"}:
        print(usage())
    elif name == "completion":
        print(COMPLETION % " ".join([*found, "completion"]))
    elif name not in found:
        sys.exit(f"ensemble: there is no command {name!r}\n\n{usage()}")
    else:
        # What argparse calls the program.
        sys.argv = [f"ensemble {name}", *rest]
        package = f"{__package__}.{name.replace('-', '_')}"
        importlib.import_module(f"{package}.__main__" if found[name].stem == "__main__" else package).main()


if __name__ == "__main__":
    main()
