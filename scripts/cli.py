"""The command `ensemble`, with each command of the project as a subcommand.

ensemble serve
ensemble classify tests/cat.jpg
ensemble doctor
eval "$(ensemble completion)"      # in bash, or in zsh after bashcompinit
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

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


GROUPS = {
    "Serve": {
        "serve": Command("scripts.serve.__main__", "Serves an application in the foreground until Ctrl-C."),
        "join": Command("scripts.serve.join", "Joins this machine to the cluster of a server, and serves on it."),
        "deploy": Command("scripts.serve.deploy", "Deploys a changed configuration to a running server."),
        "classify": Command("scripts.classify", "Classifies images with a running server."),
        "plan": Command("scripts.plan.__main__", "Predicts a configuration's rates and latencies."),
        "tune": Command("scripts.tune.__main__", "Chooses the settings that suit a p99, and writes them."),
        "load": Command("scripts.load.__main__", "Loads a server and reports its rate, latency and cost."),
        "doctor": Command("scripts.doctor.__main__", "Checks this machine and a configuration."),
        "keys": Command("scripts.keys", "Makes, lists and removes API keys."),
        "trace": Command("scripts.trace.__main__", "Draws a trace from a file or from Jaeger."),
        "shadow": Command("scripts.shadow.__main__", "Recommends whether to promote a running server's shadows."),
    },
    "Models": {
        "init": Command("scripts.init", "Writes the configuration that serves models of your own."),
        "prepare": Command("scripts.prepare.__main__", "Brings a model of any framework into the repository."),
        "quantize": Command("scripts.prepare.quantize", "Quantizes a model of the repository to int8."),
        "calibrate": Command("scripts.prepare.calibrate", "Fits a temperature that makes probabilities right."),
        "check": Command("scripts.evaluate.__main__", "Measures a configuration on labelled images."),
        "evaluate": Command("scripts.evaluate.__main__", "The same, and models of a repository or a server."),
        "tune-cascade": Command("scripts.tune_cascade.__main__", "Chooses a cascade's order and thresholds."),
        "manifest": Command("scripts.manifest", "Writes the manifest of a repository that a website serves."),
    },
    "Training (in a checkout)": {
        "train": Command("scripts.training.__main__", "Trains a member: a CIFAR-size network."),
    },
    "Laboratory (in a checkout)": {
        "benchmark": Command("scripts.lab.benchmark.__main__", "Compares this application with other servers."),
        "limit": Command("scripts.lab.benchmark.limit", "Measures what the models allow, unserved."),
        "experiments": Command("scripts.lab.experiments.__main__", "Repeats an experiment of docs/experiments."),
        "faults": Command("scripts.lab.faults.__main__", "Injects faults into running servers under load."),
        "harder": Command("scripts.lab.harder", "Makes labelled images harder to recognize."),
        "pictures": Command("scripts.lab.pictures.__main__", "Draws the pictures of the documentation."),
        "reference": Command("scripts.lab.reference.__main__", "Writes docs/reference from the code."),
        "docs": Command("scripts.lab.docs", "Builds the documentation as a website, and checks its links."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
# Names of earlier versions, read for one more.
RENAMED = {"overload": "load"}
# What the wheel leaves out.
CHECKOUT_ONLY = ("scripts.training", "scripts.lab")


def usage() -> str:
    """The commands by group, a line each."""
    width = max(map(len, COMMANDS)) + 2
    lines = ["usage: ensemble COMMAND ..."]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:{width}}{command.help}" for name, command in group.items())]
    lines += ["", f"  {'completion':{width}}Prints a script that completes commands and options in a shell."]
    return "\n".join([*lines, "", "ensemble COMMAND --help says more; ensemble --version prints the version."])


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
        print(COMPLETION % " ".join([*COMMANDS, "completion"]))
    elif name not in COMMANDS:
        sys.exit(f"ensemble: there is no command {name!r}\n\n{usage()}")
    elif found := hidden():
        place = next(iter(found.values()))
        sys.exit(
            f"ensemble: {place} hides a package of ensemble-serving; take its folder out of PYTHONPATH, or rename it"
        )
    else:
        try:
            module = importlib.import_module(COMMANDS[name].module)
        except ModuleNotFoundError as err:
            if err.name not in CHECKOUT_ONLY:
                raise
            sys.exit(f"ensemble {name}: this installation has no {err.name}; run it in a checkout of the project")
        # What argparse calls the program.
        sys.argv = [f"ensemble {name}", *rest]
        try:
            module.main()
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
