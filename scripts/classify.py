"""Classifies photographs with a running server and shows the answers as a table, or as JSON.

ensemble classify photo.jpg ... [--protocol grpc] [--top-k 3] [--members] [--json]

ensemble classify folder/ --workers 64 --output answers.csv      # very many; the same again goes on with it

A server that asks for a key finds it in the environment, ENSEMBLE_API_KEY; --ca has the certificate of one with TLS.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.protocol import inference_pb2 as pb
from deployments.protocol.inference_pb2_grpc import GRPCInferenceServiceStub
from scripts.bulk import classify_all, photographs
from scripts.errors import check_writable, positive, told_in_one_line

Ask = Callable[[bytes], dict[str, Any]]
Result = tuple[Path, dict[str, Any] | str]
# Characters of a path in the table, its end.
LONGEST_PATH = 48
KEY = "ENSEMBLE_API_KEY"


def authorization() -> dict[str, str]:
    """What shows the key, over either protocol."""
    key = os.environ.get(KEY)
    return {"authorization": f"Bearer {key}"} if key else {}


def over_http(url: str, ca: Path | None, top_k: int, members: bool) -> Ask:
    """Ask `POST /classify`."""
    trust = ssl.create_default_context(cafile=ca)
    client = httpx.Client(base_url=url, headers=authorization(), timeout=60, verify=trust)

    def ask(image: bytes) -> dict[str, Any]:
        query = {"top_k": top_k, "members": members}
        answer = client.post("/classify", content=image, params=query)
        body: dict[str, Any] = answer.json()
        if "error" in body:
            raise ValueError(body["error"]["message"])
        return body

    return ask


def over_grpc(address: str, ca: Path | None, top_k: int, members: bool) -> Ask:
    """Ask the Open Inference Protocol's `ModelInfer`; it answers what its tensors have no place for in a parameter."""
    if ca is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes()))
    stub = GRPCInferenceServiceStub(channel)
    metadata = tuple(authorization().items())

    def ask(image: bytes) -> dict[str, Any]:
        request = pb.ModelInferRequest(model_name="ensemble")
        request.raw_input_contents.append(len(image).to_bytes(4, "little") + image)
        request.inputs.add(name="image", datatype="BYTES", shape=[1])
        request.parameters["top_k"].int64_param = top_k
        request.parameters["members"].bool_param = members
        try:
            answer = stub.ModelInfer(request, metadata=metadata, timeout=60)
        except grpc.RpcError as err:
            raise ValueError(err.details()) from err
        [classification] = json.loads(answer.parameters["classifications"].string_param)
        result: dict[str, Any] = classification
        return result

    return ask


def show(results: Sequence[Result], members: bool) -> Table:
    """A row for each class listed, a line of its own for an error."""
    table = Table("photograph", "label", "probability", *(["members"] if members else []))
    for path, answer in results:
        # As text, because what a file is called may look like markup.
        name = Text(_end(str(path)))
        if isinstance(answer, str):
            table.add_row(name, Text(answer, "red"), "")
            continue
        votes = ", ".join(f"{k}: {v['label']} {v['probability']:.3f}" for k, v in answer.get("members", {}).items())
        for rank, item in enumerate(answer["top"]):
            row: list[Text | str] = [name if rank == 0 else "", Text(item["label"]), f"{item['probability']:.4f}"]
            table.add_row(*row, *([votes if rank == 0 else ""] if members else []))
    return table


def to_json(results: Sequence[Result]) -> str:
    """A line for each photograph: its answer, or its error, and its path."""
    lines = [{"path": str(p), **({"error": a} if isinstance(a, str) else a)} for p, a in results]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


def _end(path: str) -> str:
    """The end of a long path, which tells one photograph of a folder from another."""
    return path if len(path) <= LONGEST_PATH else f"…{path[1 - LONGEST_PATH :]}"


def in_bulk(url: str, ca: Path | None, paths: Sequence[Path], output: Path, workers: int) -> None:
    """Ask for every file of folders, write a CSV file, and tell at the end what failed and why."""
    with told_in_one_line():
        try:
            trust = ssl.create_default_context(cafile=ca)
            report = classify_all(url, photographs(paths), output, workers, authorization(), trust)
        except KeyboardInterrupt:
            sys.exit(f"stopped; what was answered is in {output}, and the same command goes on with it")
    print("\n".join(report.lines()))
    if report.failed:
        sys.exit(1)


def main() -> None:
    """Parse the command line, ask, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", nargs="+", type=Path)
    parser.add_argument("--protocol", choices=("http", "grpc"), default="http")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the HTTP server")
    parser.add_argument("--grpc", default="127.0.0.1:9000", help="host:port of the gRPC server")
    parser.add_argument("--ca", type=Path, help="certificate to trust, PEM; gRPC then speaks TLS")
    parser.add_argument("--top-k", type=int, default=1)
    parser.add_argument("--members", action="store_true", help="each member's own answer")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each photograph")
    parser.add_argument("--output", type=Path, metavar="FILE.csv", help="of very many: append each one's answer here")
    parser.add_argument("--workers", type=positive, default=16, help="requests at a time, with --output")
    args = parser.parse_args()
    if args.output is not None:
        if args.protocol != "http":
            parser.error("--output goes with --protocol http")
        check_writable(parser, args.output)
        in_bulk(args.url, args.ca, args.photographs, args.output, args.workers)
        return
    if args.protocol == "http":
        ask = over_http(args.url, args.ca, args.top_k, args.members)
    else:
        ask = over_grpc(args.grpc, args.ca, args.top_k, args.members)
    results: list[Result] = []
    for path in args.photographs:
        try:
            results.append((path, ask(path.read_bytes())))
        except (OSError, ValueError) as err:
            results.append((path, str(err)))
        except httpx.TransportError as err:
            results.append((path, f"no answer from {args.url}: {err}; is the server running (make serve)?"))
            break
    if args.json:
        print(to_json(results))
    else:
        Console().print(show(results, args.members))
    if any(isinstance(answer, str) for _, answer in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
