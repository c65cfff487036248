"""Says what is wrong with this machine or a configuration; each line that is not well ends in what to do.

    ensemble doctor
    ensemble doctor configs/colocated.yaml

It looks at ports, cores, instructions, memory, HAProxy, the token, installed versions, the configuration and its
models, and sends one image through each node in this process. It exits by 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from scripts.doctor.finding import Finding
from scripts.shipped import shipped

COLOURS = {"ok": "green", "look": "yellow", "wrong": "bold red"}


def examine(config: dict[str, Any]) -> Iterator[Finding]:
    """Everything about this machine and a Serve config."""
    from scripts.doctor import machine, software
    from scripts.serve.environment import switches
    from scripts.serve.exposure import IMPORT_PATH
    from scripts.serve.ports import wanted

    yield software.versions()
    yield software.haproxy()
    needed = machine.reserved(config)
    yield machine.cores(needed["num_cpus"])
    yield machine.instructions()
    yield machine.memory(needed["memory"], needed["replicas"])
    yield machine.token()
    for name, value in switches().items():
        os.environ.setdefault(name, value)
    yield from machine.ports(wanted(config))
    for application in config.get("applications") or []:
        if application.get("import_path") == IMPORT_PATH:
            yield from software.application(application.get("args") or {})


def main() -> None:
    """Parse the command line and look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "config", type=Path, nargs="?", default=shipped("serve_config.yaml"), help="a Serve config file (default: ours)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()

    import yaml

    from scripts.errors import ScriptError, told_in_one_line

    with told_in_one_line():
        try:
            config = yaml.safe_load(args.config.read_text(encoding="utf-8"))
        except yaml.YAMLError as err:
            raise ScriptError(f"{args.config} is no YAML: {err}") from err
        if not isinstance(config, dict):
            raise ScriptError(f"{args.config}: a Serve config file is a mapping; see serve_config.yaml")
        found, console = [], Console(soft_wrap=True)
        for finding in examine(config):
            found.append(finding)
            if not args.json:
                line = Text(f"{finding.verdict:6}", COLOURS[finding.verdict]) + Text(finding.what)
                console.print(line + Text(f" → {finding.remedy}" if finding.remedy else ""))
    if args.json:
        print(json.dumps([finding._asdict() for finding in found]))
    sys.exit(1 if any(finding.verdict == "wrong" for finding in found) else 0)


if __name__ == "__main__":
    main()
