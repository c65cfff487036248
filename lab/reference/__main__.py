"""Writes docs/reference from the code: configuration and JSON schema, commands, errors, HTTP, gRPC, metrics, Python.

    ensemble reference

Run it after a change of a field, a command's options, an error, a path, a proto, a metric or a public
docstring; a test fails until then.
"""

from __future__ import annotations

from lab.reference import configuration, grpc, http
from lab.reference.pages import commands, errors, metrics, python
from scripts.flags import described
from scripts.shipped import CHECKOUT

FOLDER = CHECKOUT / "docs" / "reference"
# The introduction above this line is written by hand.
LINE = "<!-- Below this line `ensemble reference` writes the page from the code; a change there is lost. -->\n\n"


def files() -> dict[str, str]:
    """Return the text of each file, by its name in the folder."""
    found = {configuration.FILE: configuration.schema()}
    pages = {"commands": commands, "errors": errors, "metrics": metrics, "python": python, "grpc": grpc.page}
    for name, page in {**pages, "http": http.page, "configuration": configuration.page}.items():
        introduction, line, _ = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition(LINE)
        found[f"{name}.md"] = introduction + line + page()
    return found


def main() -> None:
    """Parse the command line and write."""
    parser = described(__doc__)
    parser.parse_args()
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
