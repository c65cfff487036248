"""Asks a server for very many photographs, some at a time; a CSV file has the answers, and what is done with."""

from __future__ import annotations

import asyncio
import csv
import io
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from scripts.errors import ScriptError

COLUMNS = ("path", "label", "index", "probability", "missing", "error", "message")
# Refused, or lost on the way: asked again, up to so many times. Other errors are final.
AGAIN = {httpx.codes.TOO_MANY_REQUESTS, 502, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT}
MOST_TRIES, LONGEST_WAIT_S, FIRST_WAIT_S = 12, 10.0, 0.2
LOST = "no_answer"


@dataclass
class Report:
    """What became of the photographs.

    Attributes:
        done: answered now.
        before: done with before.
        failed: by an error's code, how many.
        examples: by an error's code, the first photograph and what was said of it.
        again: the codes of errors that are not final.
    """

    done: int = 0
    before: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[str]:
        """What to tell of it at the end."""
        earlier = f"; {self.before} were done before" if self.before else ""
        yield f"{self.done} photographs classified, {self.failed.total()} failed{earlier}"
        for code, count in self.failed.most_common():
            hint = "; run it again for these" if code in self.again else ""
            yield f"  {code}: {count}, such as {self.examples[code]}{hint}"


def photographs(paths: Iterable[Path]) -> list[Path]:
    """The files, and every file of the folders, in order.

    Raises:
        ScriptError: there is no such file or folder, or nothing in them.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ScriptError(f"there is no {path}")
        found += sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not found:
        raise ScriptError("there is no file in the folders that were named")
    return found


def classify_all(
    url: str,
    paths: list[Path],
    output: Path,
    workers: int,
    headers: dict[str, str],
    trust: ssl.SSLContext | bool = True,
) -> Report:
    """Ask for each photograph that the file has no final answer for, and append the answers, in the order they come.

    Args:
        url: of the server.
        paths: the photographs.
        output: a CSV file of `COLUMNS`.
        workers: requests at a time.
        headers: of each request.
        trust: which certificates.

    Raises:
        ScriptError: the file is another's.
    """
    finished = _finished(output)
    left = [path for path in paths if str(path) not in finished]
    report = Report(before=len(paths) - len(left))
    is_new = not output.exists() or output.stat().st_size == 0
    with output.open("a", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        rows = csv.DictWriter(stream, COLUMNS)
        if is_new:
            rows.writeheader()

        def note(path: Path, answer: dict[str, Any]) -> None:
            if (error := answer.get("error")) is None:
                report.done += 1
                told = {name: answer.get(name, "") for name in COLUMNS[1:4]}
                missing = " ".join(f"{name}:{code}" for name, code in (answer.get("missing") or {}).items())
                rows.writerow({"path": path, **told, "missing": missing})
            else:
                code = str(error["code"])
                report.failed[code] += 1
                report.examples.setdefault(code, f"{path}: {error['message']}")
                # What may go better another time is not written, so that another run asks again.
                if error.get("again"):
                    report.again.add(code)
                else:
                    rows.writerow({"path": path, "error": code, "message": error["message"]})
            stream.flush()

        asyncio.run(_ask_all(url, left, workers, headers, trust, note))
    return report


def _finished(output: Path) -> set[str]:
    """The paths that a file has already; a line that was being written when a run was killed is taken out."""
    if not output.exists() or not (content := output.read_bytes()):
        return set()
    whole = content[: content.rfind(b"\n") + 1]
    rows = csv.DictReader(io.StringIO(whole.decode("utf-8", "surrogateescape"), newline=""))
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise ScriptError(f"{output} is no file of this command; name another by --output")
    finished = {row["path"] for row in rows}
    if len(whole) < len(content):
        output.write_bytes(whole)
    return finished


async def _ask_all(
    url: str, paths: list[Path], workers: int, headers: dict[str, str], trust: ssl.SSLContext | bool, note: Any
) -> None:
    waiting = iter(paths)
    limits = httpx.Limits(max_connections=workers, max_keepalive_connections=workers)
    async with httpx.AsyncClient(
        base_url=url, timeout=60, limits=limits, headers=headers, verify=trust, trust_env=False
    ) as client:
        with tqdm(total=len(paths), unit="photograph", mininterval=0.5) as bar:

            async def work() -> None:
                for path in waiting:
                    note(path, await _ask(client, path))
                    bar.update()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(workers, len(paths))):
                    group.create_task(work())


async def _ask(client: httpx.AsyncClient, path: Path) -> dict[str, Any]:
    """The answer to a photograph, or its error; an error that is not final says `again`."""
    try:
        image = await asyncio.to_thread(path.read_bytes)
    except OSError as err:
        return {"error": {"code": "unreadable", "message": str(err), "again": True}}
    wait_s, problem = FIRST_WAIT_S, {"code": LOST, "message": ""}
    for _ in range(MOST_TRIES):
        try:
            answer = await client.post("/classify", content=image)
            body: dict[str, Any] = answer.json()
        except httpx.TransportError as err:
            problem = {"code": LOST, "message": f"no answer from {client.base_url}: {err or type(err).__name__}"}
        except ValueError:
            problem = {"code": LOST, "message": f"status {answer.status_code} without JSON"}
        else:
            if "error" not in body or answer.status_code not in AGAIN:
                return body
            problem = body["error"]
            wait_s = float(problem.get("retry_after_ms", 1000 * wait_s)) / 1000
        await asyncio.sleep(min(wait_s, LONGEST_WAIT_S))
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    return {"error": {**problem, "again": True}}
