"""Classifies images with a running server and prints the answers as a table, as JSON, or into a CSV file.

    ensemble classify photo.jpg folder/ [--protocol grpc] [--top-k 3] [--members] [--json]
    ensemble classify folder/ --workers 64 --output answers.csv

The second form is for very many images: each answer is written as it comes, and the same command continues after an
interruption. The API key is read from the environment variable ENSEMBLE_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.answers import AnswersFile, images
from scripts.client import Client, for_each
from scripts.errors import check_writable, errors_in_one_line, positive
from scripts.flags import described

Result = tuple[Path, dict[str, Any]]
# Characters of a path in the table.
LONGEST_PATH = 48


async def classify(
    args: argparse.Namespace, paths: Sequence[Path], note: Callable[[Path, dict[str, Any]], None]
) -> None:
    """Send each image, and note its answer or its error as it comes."""
    url = args.url if args.protocol == "http" else f"{'grpcs' if args.ca else 'grpc'}://{args.grpc}"
    async with Client(url, args.workers, args.ca) as client:

        async def one(path: Path) -> None:
            try:
                image = await asyncio.to_thread(path.read_bytes)
                answer = await client.classify(image, top_k=args.top_k, members=args.members)
            except OSError as err:
                answer = {"error": {"code": "unreadable", "message": str(err), "temporary": True}}
            note(path, answer)

        await for_each(paths, one, args.workers, len(paths))


def into_file(args: argparse.Namespace, paths: Sequence[Path]) -> AnswersFile:
    """Classify the images that the file of `--output` has no final answer for, and write theirs."""
    file = AnswersFile(args.output)
    left = [path for path in paths if str(path) not in file.finished]
    with file.open():
        try:
            asyncio.run(classify(args, left, file.note))
        except KeyboardInterrupt:
            sys.exit(f"stopped; what was answered is in {args.output}, and the same command continues with it")
    return file


def show(results: Sequence[Result], members: bool) -> Table:
    """Make a table with a row for each class of an answer, and a row for each error."""
    table = Table("image", "label", "probability", *(["members"] if members else []))
    for path, answer in results:
        # Plain text, because a file's name may look like markup; its end tells one file of a folder from another.
        name = Text(str(path) if len(str(path)) <= LONGEST_PATH else f"…{str(path)[1 - LONGEST_PATH :]}")
        if "error" in answer:
            table.add_row(name, Text(answer["error"]["message"], "red"), "")
            continue
        votes = ", ".join(f"{k}: {v['label']} {v['probability']:.3f}" for k, v in answer.get("members", {}).items())
        for rank, item in enumerate(answer["top"]):
            row: list[Text | str] = [name if rank == 0 else "", Text(item["label"]), f"{item['probability']:.4f}"]
            table.add_row(*row, *([votes if rank == 0 else ""] if members else []))
    return table


def to_json(results: Sequence[Result]) -> str:
    """Write a line of JSON for each image: its path, and its answer or its error's message."""
    lines = [{"path": str(p), **({"error": a["error"]["message"]} if "error" in a else a)} for p, a in results]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = described(__doc__)
    parser.add_argument("images", nargs="+", type=Path, help="image files, and folders of them")
    parser.add_argument("--protocol", choices=("http", "grpc"), default="http")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the HTTP server")
    parser.add_argument("--grpc", default="127.0.0.1:9000", help="host:port of the gRPC server")
    parser.add_argument("--ca", type=Path, help="certificate to trust, PEM; gRPC then uses TLS")
    parser.add_argument("--top-k", type=positive, default=1, help="classes for each image")
    parser.add_argument("--members", action="store_true", help="print each member's own answer too")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each image")
    parser.add_argument("--output", type=Path, metavar="FILE.csv", help="append each answer to this file instead")
    parser.add_argument("--workers", type=positive, default=16, help="requests at a time (default: 16)")
    args = parser.parse_args()
    check_writable(parser, args.output)
    if args.output is not None and (args.json or args.members or args.top_k > 1):
        parser.error("--output writes one class for each image: leave out --json, --members and --top-k")
    return args


def main() -> None:
    """Parse the command line, classify, and print."""
    args = parse()
    with errors_in_one_line():
        paths = images(args.images)
        if args.output is not None:
            file = into_file(args, paths)
            print("\n".join(file.report(len(paths))))
            sys.exit(1 if file.failed else 0)
        answers: dict[Path, dict[str, Any]] = {}
        asyncio.run(classify(args, paths, answers.__setitem__))
    results = [(path, answers[path]) for path in paths]
    if args.json:
        print(to_json(results))
    else:
        Console().print(show(results, args.members))
    sys.exit(1 if any("error" in answer for answer in answers.values()) else 0)


if __name__ == "__main__":
    main()
