"""Writes docs/reference from the code: configuration and JSON schema, commands, errors, HTTP, gRPC, metrics, Python.

    ensemble reference

Run it after a change of a field, a command's options, an error, a path, a proto, a metric or a public
docstring; a test fails until then.
"""

from __future__ import annotations

from pathlib import Path

from lab.reference import commands, configuration, errors, grpc, http, metrics, python
from scripts.flags import described
from scripts.shipped import CHECKOUT

FOLDER = CHECKOUT / "docs" / "reference"
NOTE = "<!-- Written by `ensemble reference` from the code; a change here is lost. -->\n\n"


def files() -> dict[str, str]:
    """Return the text of each file, by its name in the folder."""
    pages = (configuration, commands, errors, http, grpc, metrics, python)
    return {
        **{f"{made.__name__.rpartition('.')[2]}.md": NOTE + made.page() for made in pages},
        configuration.FILE: configuration.schema(),
    }


def write(folder: Path) -> None:
    """Write every file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Parse the command line and write."""
    parser = described(__doc__)
    parser.parse_args()
    write(FOLDER)
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
