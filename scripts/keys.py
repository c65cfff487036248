"""Makes, lists and removes API keys.

    ensemble keys add mobile --file keys [--rate 50]
    ensemble keys list --file keys
    ensemble keys remove mobile --file keys

A key is printed once, when it is made; the file holds its SHA-256. A running server reads a change within seconds.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from deployments.ingress.keys import Key, digest, parse, read
from scripts.errors import ScriptError, check_writable, errors_in_one_line
from scripts.flags import described

# By which a key is recognized wherever it turns up.
PREFIX = "ens_"
BYTES = 32


def add(file: Path, name: str, rate: float | None) -> str:
    """Make a key, and add its digest to the file; returns the key.

    Raises:
        ConfigurationError: the file is malformed, or the name or the rate is.
        ScriptError: the name is taken.
    """
    key = PREFIX + secrets.token_urlsafe(BYTES)
    line = f"{name} {digest(key).hex()}" + ("" if rate is None else f" {rate:g}")
    parse(line)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if any(each.name == name for each in parse(text)):
        raise ScriptError(f"{file} has a key of the name {name!r}; remove it first, or choose another name")
    changed = text + ("" if text.endswith("\n") or not text else "\n") + line + "\n"
    parse(changed)
    _write(file, changed)
    return key


def remove(file: Path, name: str) -> None:
    """Remove a key from the file.

    Raises:
        ConfigurationError: the file is malformed.
        ScriptError: it has no such key.
    """
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    left = [line for line in lines if line.partition("#")[0].split()[:1] != [name]]
    if left == lines:
        raise ScriptError(f"{file} has no key of the name {name!r}; it has {[key.name for key in read(file)]}")
    _write(file, "".join(left))


def shown(key: Key) -> str:
    """A key's line in the list."""
    return f"{key.name}  {key.digest.hex()[:12]}…  " + ("any rate" if key.rate is None else f"{key.rate:g}/s")


def _write(file: Path, text: str) -> None:
    """Replace the file at once, so that no reader sees half of it; only this user can read a new one."""
    mode = file.stat().st_mode if file.exists() else 0o600
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, mode & 0o777)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def main() -> None:
    """Parse the command line, and add, list or remove."""
    parser = described(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|list|remove")
    for command, text in (("add", "make a key and print it"), ("list", "list the keys"), ("remove", "remove a key")):
        each = commands.add_parser(command, help=text)
        if command != "list":
            each.add_argument("name", help="whose key it is")
        each.add_argument("--file", type=Path, required=True, help="the file that access.keys names")
        if command == "add":
            each.add_argument("--rate", type=float, help="requests per second, for each replica of the ingress")
    args = parser.parse_args()
    check_writable(parser, args.file)
    with errors_in_one_line():
        if args.command == "add":
            print(add(args.file, args.name, args.rate))
        elif args.command == "remove":
            remove(args.file, args.name)
        else:
            print("\n".join(map(shown, read(args.file))))


if __name__ == "__main__":
    main()
