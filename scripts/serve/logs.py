"""The warnings and errors in the logs of a server's replicas, for its terminal; Serve itself prints them nowhere."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEVELS = ("WARNING", "ERROR", "CRITICAL")
# Serve's text: the level, the date, the time, the deployment, the replica, perhaps a request's id, and the message.
TEXT = re.compile(r"([A-Z]+) \d{4}-\d\d-\d\d \S+ (\S+) (\S+) (?:\S+ )?-- (.*)")
# Of a traceback: the line of an exception.
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*: |[\w.]*(Error|Exception)$")
TRACE = re.compile(r"\b[0-9a-f]{32}\b")
# A message that a deployment logs again so soon is printed once.
REPEAT_S = 60.0
MOST_AT_ONCE = 20


class Record(NamedTuple):
    """A warning or an error.

    Attributes:
        level: one of `LEVELS`.
        deployment: its name with the application's, such as `ensemble_Ingress`; for Serve's own, the component.
        replica: the replica's id; for Serve's own, the number of the process.
        message: the logged text.
        line: the first line as it is in the file; with JSON all of the record.
        cause: the last exception of the traceback; empty if there is none.
    """

    level: str
    deployment: str
    replica: str
    message: str
    line: str
    cause: str = ""

    def with_cause(self, traceback: list[str]) -> Record:
        """Add the last exception in a traceback's lines to the record, if they have one."""
        causes = [line for line in traceback if EXCEPTION.match(line)]
        return self._replace(cause=causes[-1]) if causes else self

    def as_json(self) -> str:
        """Format the record as a line of JSON: a line of JSON as it was logged, a line of text by the same names."""
        if self.line.startswith("{"):
            return self.line
        fields = {"levelname": self.level, "message": self.message, "exc_text": self.cause}
        return json.dumps({**fields, "component_name": self.deployment, "component_id": self.replica})

    def __str__(self) -> str:
        what = f"{self.message.removesuffix(':')}: {self.cause}" if self.cause else self.message
        return f"{self.level.lower()}: {self.deployment} {self.replica}: {what}"


class Logs:
    """The logs of a server's replicas, of Serve's controller and of the process that builds the application."""

    def __init__(self, session: Path, as_json: bool = False) -> None:
        """Set the folder of Ray's session, and whether records are printed as the JSON that they are logged in."""
        self.folder = session / "logs" / "serve"
        self._as_json = as_json
        self._read: dict[Path, int] = {}
        self._seen: dict[tuple[str, str], float] = {}

    def new(self) -> list[Record]:
        """Return the warnings and errors since the last call; list one that repeats within a minute once."""
        now = time.monotonic()
        self._seen = {key: when for key, when in self._seen.items() if now < when + REPEAT_S}
        found = []
        for file in sorted(self.folder.glob("*.log")):
            for record in _records(self._lines(file)):
                # Each request has a trace of its own.
                if (key := (record.deployment, TRACE.sub("", record.message + record.cause))) not in self._seen:
                    self._seen[key] = now
                    found.append(record)
        return found

    def skip(self) -> None:
        """Pass over the lines so far; a repetition counts as new."""
        for file in self.folder.glob("*.log"):
            for _ in self._lines(file):
                pass

    def print_new(self) -> list[Record]:
        """Print the first warnings and errors since the last call, and how many more there are; return all of them."""
        found = self.new()
        for record in found[:MOST_AT_ONCE]:
            self.print(record)
        if (more := len(found) - MOST_AT_ONCE) > 0:
            print(f"warning: {more} more warnings and errors are in {self.folder}", file=sys.stderr, flush=True)
        return found

    def print(self, record: Record) -> None:
        """Print a record in the form of the logs."""
        print(record.as_json() if self._as_json else record, file=sys.stderr, flush=True)

    def _lines(self, file: Path) -> Iterator[str]:
        """Yield the complete lines that a file has got since the last call."""
        size, begin = file.stat().st_size, self._read.get(file, 0)
        with file.open("rb") as stream:
            # A log that is shorter than before was rotated.
            stream.seek(begin if begin <= size else 0)
            for line in iter(stream.readline, b""):
                # A line that is being written is read the next time.
                if not line.endswith(b"\n"):
                    break
                self._read[file] = stream.tell()
                yield line.decode(errors="replace").rstrip()


def _records(lines: Iterator[str]) -> Iterator[Record]:
    """Yield the warnings and errors in a log's lines; a traceback belongs to the record before it."""
    last: Record | None = None
    for line in lines:
        begins, record = _parsed(line)
        if begins and last is not None:
            yield last
        if begins:
            last = record
        elif last is not None:
            last = last.with_cause([line])
    if last is not None:
        yield last


def _parsed(line: str) -> tuple[bool, Record | None]:
    """Tell whether a line begins a record, and return the record if it is a warning or an error."""
    if found := TEXT.match(line):
        level, deployment, replica, message = found.groups()
        return True, Record(level, deployment, replica, message, line) if level in LEVELS else None
    try:
        fields = json.loads(line) if line.startswith("{") else {}
        level, message = fields["levelname"], fields["message"]
    except (ValueError, KeyError):
        return False, None
    deployment = fields.get("deployment", fields.get("component_name", ""))
    replica = fields.get("replica", fields.get("component_id", ""))
    record = Record(level, deployment, replica, message, line).with_cause(fields.get("exc_text", "").splitlines())
    return True, record if level in LEVELS else None
