"""Makes, lists, replaces and removes API keys.

    ensemble keys add mobile --file keys [--rate 50]
    ensemble keys list --file keys
    ensemble keys rotate mobile --file keys [--hours 24]
    ensemble keys remove mobile --file keys

A key is printed once, when it is made; the file holds its SHA-256. A running server reads a change within seconds.
`rotate` makes another key for a name, with the same rate; the previous key is accepted for some hours more.
"""

import os
import secrets
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deployments.ingress.keys import UNTIL, Key, digest, parse, read
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described

# By which a key is recognized wherever it turns up.
PREFIX = "ens_"
BYTES = 32
COMMANDS = {
    "add": "make a key and print it",
    "list": "list the keys",
    "rotate": "make another key for a name, print it, and end the previous one later",
    "remove": "remove a name's keys",
}


def add(file: Path, name: str, rate: float | None) -> str:
    """Make a key, and add its digest to the file; returns the key.

    Raises:
        ConfigurationError: the file is malformed, or the name or the rate is.
        ScriptError: the name is taken.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if any(each.name == name for each in parse(text)):
        raise ScriptError(f"{file} has a key of the name {name!r}; rotate or remove it, or choose another name")
    return _append(file, text, name, rate)


def rotate(file: Path, name: str, hours: float) -> str:
    """Make another key for a name, and end the present key after some hours; returns the new key.

    A key of the name that had an end before is removed.

    Raises:
        ConfigurationError: the file is malformed.
        ScriptError: it has no such key, or there is no such end.
    """
    present = [key for key in read(file) if key.name == name and key.until is None]
    others = _without(file, name)
    if not present:
        raise ScriptError(f"the key {name!r} has an end already; remove it, and add it again")
    if not hours >= 0:
        raise ScriptError(f"--hours {hours:g} is no time from now on")
    try:
        end = datetime.now(UTC) + timedelta(hours=hours)
    except OverflowError as err:
        raise ScriptError(f"--hours {hours:g} leads beyond every date; name fewer") from err
    previous = _with_line(others, f"{_line(present[0])} {UNTIL}{end.isoformat(timespec='seconds')}")
    return _append(file, previous, name, present[0].rate)


def remove(file: Path, name: str) -> None:
    """Remove a key from the file.

    Raises:
        ConfigurationError: the file is malformed.
        ScriptError: it has no such key.
    """
    _write(file, _without(file, name))


def shown(key: Key) -> str:
    """Format a key as a line of the list."""
    ends = "" if key.until is None else f"  until {key.until.isoformat()}"
    return f"{key.name}  {key.digest.hex()[:12]}…  {'any rate' if key.rate is None else f'{key.rate:g}/s'}{ends}"


def _without(file: Path, name: str) -> str:
    """Return the text of a file without the keys of a name; raise ScriptError if the file has none."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    left = [line for line in lines if line.partition("#")[0].split()[:1] != [name]]
    if left == lines:
        raise ScriptError(f"{file} has no key of the name {name!r}; it has {[key.name for key in read(file)]}")
    return "".join(left)


def _line(key: Key) -> str:
    return f"{key.name} {key.digest.hex()}" + ("" if key.rate is None else f" {key.rate:g}")


def _with_line(text: str, line: str) -> str:
    return text + ("" if text.endswith("\n") or not text else "\n") + line + "\n"


def _append(file: Path, text: str, name: str, rate: float | None) -> str:
    """Write a text and the line of a new key; returns the key."""
    key = PREFIX + secrets.token_urlsafe(BYTES)
    line = _line(Key(name, digest(key), rate))
    parse(line)
    changed = _with_line(text, line)
    parse(changed)
    _write(file, changed)
    return key


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
    """Parse the command line, and add, list, rotate or remove."""
    parser = described(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|list|rotate|remove")
    for command, text in COMMANDS.items():
        each = commands.add_parser(command, help=text)
        if command != "list":
            each.add_argument("name", help="name of the key's owner")
        each.add_argument("--file", type=Path, required=True, help="the file that access.keys names")
        if command == "add":
            each.add_argument("--rate", type=float, help="requests per second, for each replica of the ingress")
        if command == "rotate":
            each.add_argument(
                "--hours", type=float, default=24.0, help="hours until the previous key ends; default: 24"
            )
    args = parser.parse_args()
    if not args.file.parent.is_dir():
        parser.error(f"there is no folder {args.file.parent} to write {args.file.name} to")
    with errors_in_one_line():
        if args.command == "add":
            print(add(args.file, args.name, args.rate))
        elif args.command == "rotate":
            print(rotate(args.file, args.name, args.hours))
        elif args.command == "remove":
            remove(args.file, args.name)
        else:
            print("\n".join(map(shown, read(args.file))))


if __name__ == "__main__":
    main()
