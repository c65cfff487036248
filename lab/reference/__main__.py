"""The generated pages of docs/reference: `ensemble reference`."""

from __future__ import annotations

import click

from ensemble_models.options import Command
from lab.reference import configuration
from lab.reference.pages import commands, errors, metrics, python
from lab.reference.protocols import grpc, http
from scripts.shipped import CHECKOUT

FOLDER = CHECKOUT / "docs" / "reference"
# The introduction above this line is written by hand.
LINE = "<!-- Below this line `ensemble reference` writes the page from the code; a change there is lost. -->\n\n"


def files() -> dict[str, str]:
    """Return the text of each file, by its name in the folder."""
    found = {configuration.FILE: configuration.schema()}
    pages = {"commands": commands, "errors": errors, "metrics": metrics, "python": python, "grpc": grpc}
    for name, page in {**pages, "http": http, "configuration": configuration.page}.items():
        introduction, line, _ = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition(LINE)
        found[f"{name}.md"] = introduction + line + page()
    return found


@click.command("reference", cls=Command)
def main() -> None:
    """Write docs/reference from the code: configuration, JSON schema, commands, errors, HTTP, gRPC, metrics, Python.

    Run it after a change of a field, a command's options, an error, a path, a proto, a metric or a public
    docstring; a test fails until then.
    """
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
