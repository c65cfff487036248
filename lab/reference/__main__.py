"""Writes docs/reference from the code: configuration, commands, errors, HTTP, gRPC, Python, and a JSON schema.

    ensemble reference

Run it after a change of a field, a command's options, an error, a path, a proto or a public
docstring; a test fails until it is done.
"""

from __future__ import annotations

from pathlib import Path

from lab.reference import commands, configuration, errors, grpc, http, python
from scripts.flags import described
from scripts.shipped import CHECKOUT

FOLDER = CHECKOUT / "docs" / "reference"
NOTE = "<!-- Written by `ensemble reference` from the code; a change here is lost. -->\n\n"


def files() -> dict[str, str]:
    """Return the text of each file, by its name in the folder."""
    pages = {
        "configuration": configuration,
        "commands": commands,
        "errors": errors,
        "http": http,
        "grpc": grpc,
        "python": python,
    }
    return {
        **{f"{name}.md": NOTE + made.page() for name, made in pages.items()},
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
