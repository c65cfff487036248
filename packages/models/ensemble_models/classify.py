"""Classifies images with a running server and prints the answers as a table, as JSON, or into a CSV file."""

import asyncio
import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from ensemble_models import client
from ensemble_models.options import FILE, POSITIVE, Command, OutputFile, Table, option
from scripts.errors import ScriptError

Result = tuple[Path, dict[str, Any]]
# Characters of a path in the table.
LONGEST_PATH = 48
# Of the file of `--output`.
COLUMNS = ("path", "label", "index", "probability", "missing", "error", "message")


class AnswersFile:
    """A CSV file of `COLUMNS`: a line for each image with a final answer, which is an answer or an error.

    Attributes:
        finished: the paths of the images that an earlier run has written.
        classified: how many images this run has classified.
        failed: how many images failed in this run, by the error's code.
    """

    def __init__(self, path: Path) -> None:
        """Read the answers of an earlier run, and remove an unfinished line.

        Raises:
            ScriptError: the file holds something else.
        """
        content = path.read_bytes() if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        rows = csv.DictReader(io.StringIO(complete.decode("utf-8", "surrogateescape"), newline=""))
        if content and tuple(rows.fieldnames or ()) != COLUMNS:
            raise ScriptError(f"{path} was not written by this command; name another file by --output")
        self.finished = {row["path"] for row in rows}
        self.classified, self.failed = 0, Counter[str]()
        # By the error's code, how its first image is reported.
        self._examples: dict[str, str] = {}
        if len(complete) < len(content):
            path.write_bytes(complete)
        # Each line is written at once, so that an interruption loses none.
        self._stream = path.open("a", 1, newline="", encoding="utf-8", errors="surrogateescape")
        self._rows = csv.DictWriter(self._stream, COLUMNS)
        if not complete:
            self._rows.writeheader()

    def note(self, path: Path, answer: dict[str, Any]) -> None:
        """Count an answer or an error, and write it if it is final."""
        if (error := answer.get("error")) is None:
            self.classified += 1
            missing = " ".join(f"{name}:{code}" for name, code in (answer.get("missing") or {}).items())
            row = {"path": path, "missing": missing, **{name: answer.get(name, "") for name in COLUMNS[1:4]}}
        else:
            code, again = str(error["code"]), "; run the command again for these" if error.get("temporary") else ""
            self.failed[code] += 1
            self._examples.setdefault(code, f"{path}: {error['message']}{again}")
            row = {} if again else {"path": path, "error": code, "message": error["message"]}
        if row:
            self._rows.writerow(row)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def report(self, images: int) -> Iterator[str]:
        """Report the outcome of `images` images in words."""
        before = images - self.classified - self.failed.total()
        earlier = f"; {before} were finished before" if before else ""
        yield f"{self.classified} images classified, {self.failed.total()} failed{earlier}"
        for code, count in self.failed.most_common():
            yield f"  {code}: {count}, such as {self._examples[code]}"


def images(paths: Iterable[Path]) -> list[Path]:
    """List the files, and every file of the folders, in order.

    Raises:
        ScriptError: there is no such file or folder, or no file in the folders.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ScriptError(f"there is no {path}")
        found += sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not found:
        raise ScriptError("there is no file in the folders that were named")
    return found


def classify(args: SimpleNamespace, paths: Sequence[Path], note: Callable[[Path, dict[str, Any]], None]) -> None:
    """Send each image, and note its answer or its error as it comes."""
    url = args.url if args.protocol == "http" else f"{'grpcs' if args.ca else 'grpc'}://{args.grpc}"
    options = {"top_k": args.top_k, "members": args.members}

    def by_position(position: int, answer: dict[str, Any]) -> None:
        note(paths[position], answer)

    asyncio.run(client.classify(url, paths, len(paths), by_position, args.workers, args.ca, **options))


def into_file(args: SimpleNamespace, paths: Sequence[Path]) -> AnswersFile:
    """Classify the images that the file of `--output` has no final answer for, and write theirs."""
    file = AnswersFile(args.output)
    left = [path for path in paths if str(path) not in file.finished]
    try:
        classify(args, left, file.note)
    except KeyboardInterrupt:
        sys.exit(f"stopped; what was answered is in {args.output}, and the same command continues with it")
    finally:
        file.close()
    return file


def table(results: Sequence[Result], members: bool) -> Table:
    """Make a table with a row for each class of an answer, and a row for each error."""
    lines = list[tuple[str, ...]]()
    for path, answer in results:
        # The end of a path tells one file of a folder from another.
        name = str(path) if len(str(path)) <= LONGEST_PATH else f"…{str(path)[1 - LONGEST_PATH :]}"
        if "error" in answer:
            lines.append((name, answer["error"]["message"]))
            continue
        votes = ", ".join(f"{k}: {v['label']} {v['probability']:.3f}" for k, v in answer.get("members", {}).items())
        first, *others = ((item["label"], f"{item['probability']:.4f}") for item in answer["top"])
        lines += [(name, *first, *([votes] if members else [])), *(("", *other) for other in others)]
    return Table(("image", "label", "probability", *(["members"] if members else [])), lines, (0, 1, 3))


def to_json(results: Sequence[Result]) -> str:
    """Write a line of JSON for each image: its path, and its answer or its error's message."""
    lines = [{"path": str(p), **({"error": a["error"]["message"]} if "error" in a else a)} for p, a in results]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


@click.command("classify", cls=Command)
@click.argument("images", nargs=-1, required=True, type=FILE)
@option("--protocol", type=click.Choice(["http", "grpc"]), default="http")
@option("--url", default="http://127.0.0.1:8000", help="Address of the HTTP server.")
@option("--grpc", default="127.0.0.1:9000", help="Host and port of the gRPC server.")
@option("--ca", type=FILE, help="Certificate to trust, PEM; gRPC then uses TLS.")
@option("--top-k", type=POSITIVE, default=1, help="Classes for each image.")
@option("--members", is_flag=True, help="Print each member's own answer, too.")
@option("--json", is_flag=True, help="Print a line of JSON for each image.")
@option("--output", type=OutputFile(), metavar="FILE.csv", help="Append each answer to this file, and print none.")
@option("--workers", type=POSITIVE, default=16, help="Requests at a time.")
def main(**given: Any) -> None:
    """Classify images with a running server; print the answers as a table or as JSON, or write a CSV file.

    ensemble classify photo.jpg folder/ [--protocol grpc] [--top-k 3] [--members] [--json]
    ensemble classify folder/ --workers 64 --output answers.csv

    The second form is for very many images: each answer is written as it comes, and the same command continues after
    an interruption. The API key is read from the environment variable ENSEMBLE_API_KEY.
    """
    args = SimpleNamespace(**given)
    if args.output is not None and (args.json or args.members or args.top_k > 1):
        raise click.UsageError("--output writes one class for each image: leave out --json, --members and --top-k")
    paths = images(args.images)
    if args.output is not None:
        file = into_file(args, paths)
        print("\n".join(file.report(len(paths))))
        sys.exit(1 if file.failed else 0)
    answers: dict[Path, dict[str, Any]] = {}
    classify(args, paths, answers.__setitem__)
    results = [(path, answers[path]) for path in paths]
    if args.json:
        print(to_json(results))
    else:
        table(results, args.members).show()
    sys.exit(1 if any("error" in answer for answer in answers.values()) else 0)


if __name__ == "__main__":
    main()
