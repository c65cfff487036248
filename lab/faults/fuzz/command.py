"""Fuzzes a server over HTTP and gRPC, and reports failures and the inputs that cost most.

    ensemble faults fuzz                                     # ten minutes, one input after the other
    ensemble faults fuzz --at-once 16 --inputs 10000         # then large images side by side
    ensemble faults fuzz --seed 7 --only 4711                # one input that was found, again

The command makes an input of its seed and number, of the server's own OpenAPI document and protos, and of hand-made
cases in lab/faults/fuzz/corpus.yaml. Inputs are damaged images, bombs, images of a million parts, forms, long and deep
JSON, gRPC messages, compressed bodies, and request smuggling. Every route and gRPC method receives them, with a key and
without. Meanwhile a bystander sends a photograph every 50 ms. Schemathesis has tests of its own for the OpenAPI
document.

A failure is a status of 5xx (but 503 with `Retry-After`), no answer within the deadline, a process that ends, or a
wrong answer to the bystander. Inputs that are sent alone also have a cost: the bystander's longest wait, and the growth
of the memory of the server's processes. The command sends an input that breaks a limit twice more, and reports the
least cost. The exit status is 1 after a failure or a broken limit.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tqdm import tqdm

from deployments.ingress.protocol import services
from ensemble_models.options import COUNT, POSITIVE
from lab.faults.campaign import Campaign
from lab.faults.fuzz.inputs import FORMATS, MIB, MOST_BYTES, Input, drawn, family, largest
from lab.faults.fuzz.requests import grpc_inputs, http_inputs, routes
from lab.faults.fuzz.runner import URL, badness, document, fuzzed
from lab.rows import Row, Rows, measured

# How much more often than others the inputs of a family are sent.
SHARES = {"large images": 1, "damaged images": 28, "HTTP": 13, "JSON": 11, "bombs": 10, "forms": 9, "parts": 7}
USUAL_SHARE, LARGE = 3, "large images"
SIZES = (8, 2**10, 2**16, 2**18, MIB, 8 * MIB, MOST_BYTES)
# The largest input where several are sent at once; the least that may be an image of megabytes.
SMALL, LEAST_FOR_LARGE = 2**16, 8 * MIB
SIDE_BY_SIDE = 64


class Corpus:
    """Every input for every route and gRPC method.

    Attributes:
        endpoints: by route or method, the inputs with a key by their hostile part.
        kinds: all inputs, by the family of the hostile part.
    """

    def __init__(self, document: Mapping[str, Any], seed: int, key: str = "", largest: int = MOST_BYTES) -> None:
        """List the inputs.

        Args:
            document: the server's OpenAPI document.
            seed: decides, with its number, each input.
            key: shown by half of the inputs; empty for none.
            largest: about how many bytes an input may have.
        """
        self._seed = seed
        sizes = st.sampled_from([round(size * part) for size in SIZES for part in (0.7, 1) if size <= largest])
        inputs = [(where, http_inputs(where, sizes, shown)) for where in routes(document) for shown in (key, "")]
        for path, method in ((f"/{one.full_name}/{each.name}", each) for one in services(None) for each in one.methods):
            inputs += [(path, grpc_inputs(path, method.input_type, sizes, shown)) for shown in (key, "")]
        self.endpoints = dict(reversed(inputs))
        self.kinds: dict[str, list[SearchStrategy[Input]]] = defaultdict(list)
        for what, strategy in (each for _, own in inputs for each in own.items()):
            if family(what) != LARGE or largest >= LEAST_FOR_LARGE:
                self.kinds[family(what)].append(strategy)
        families = [each for each in self.kinds for _ in range(SHARES.get(each, USUAL_SHARE))]
        kinds = st.sampled_from(families).flatmap(lambda each: st.sampled_from(self.kinds[each]))
        self._inputs: SearchStrategy[Input] = kinds.flatmap(lambda strategy: strategy)

    def made(self, number: int) -> Input:
        """Make the input of this number."""
        return drawn(self._inputs, f"{self._seed}/{number}")


def originals(name: str, key: str) -> dict[int, Input]:
    """Return the largest image of a format, as often as it is sent at once."""
    image = largest(name)
    head = f"POST /classify HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    content = f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image
    sent = Input("POST /classify", f"originals, {SIDE_BY_SIDE} at once, {name}", content, key)
    return dict.fromkeys(range(SIDE_BY_SIDE), sent)


def sent(minutes: int, inputs: int | None, seed: int, only: Sequence[int], at_once: int) -> Iterator[Row]:
    """Start a server, send it inputs, and yield a row for each; Ctrl-C ends the run, and its rows are reported."""
    # Made before the server is watched, and kept: it takes memory and time as well.
    formats = [name for name in FORMATS if at_once > 1 and not only and largest(name)]
    chosen = only or (range(inputs) if inputs else None)
    numbers = iter(chosen or itertools.count())
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        fuzzed(Path(folder)) as (runner, key),
        tqdm(total=len(chosen) if chosen else None, unit="input") as bar,
    ):
        corpus = Corpus(document(URL), seed, key, MOST_BYTES if at_once == 1 else SMALL)
        ends = float("inf") if chosen else time.monotonic() + minutes * 60
        while time.monotonic() < ends and (volley := list(itertools.islice(numbers, at_once))):
            made = {number: corpus.made(number) for number in volley}
            yield from map(runner.alone, made, made.values()) if at_once == 1 else runner.volley(made)
            bar.update(len(volley))
        for name in formats:
            yield from runner.volley(originals(name, key))


def note(row: Row) -> str:
    """Describe a finding."""
    reason = row["failure"] or f"{row['share_of_limit']:.2f} of its limit"
    return f"{row['number']}: {row['where']}, {row['what']}: {reason}" if row["finding"] else ""


def families(rows: Rows) -> Rows:
    """Return a row for each family of inputs: how often each status was seen, and the worst of each measure."""
    groups: dict[str, Rows] = defaultdict(list)
    for each in measured(rows):
        groups[family(each["what"])].append(each)
    failed = [each for each in rows if "error" in each]
    return [_together(name, group) for name, group in sorted(groups.items())] + failed


def _together(name: str, rows: Rows) -> Row:
    statuses = Counter(each["status"] for each in rows).most_common()
    worst: Row = max(rows, key=badness)
    return {
        **worst,
        **{measure: max(each[measure] for each in rows) for measure in ("seconds", "wait_s")},
        "family": name,
        "inputs": len(rows),
        "statuses": ", ".join(f"{status} ({count:,})" for status, count in statuses),
        "failures": sum(each["failure"] is not None for each in rows),
        "memory_mb": max(each["memory"] for each in rows) / 1e6,
    }


FUZZ = Campaign(
    name="fuzz",
    help=__doc__,
    measure=sent,
    flags={
        "--minutes": {"type": POSITIVE, "default": 10, "help": "How long to send inputs; default: 10."},
        "--inputs": {"type": POSITIVE, "help": "Send this many inputs, however long it takes."},
        "--seed": {"type": int, "default": 1, "help": "Of all inputs; default: 1."},
        "--only": {"type": COUNT, "multiple": True, "metavar": "NUMBER...", "help": "Send these inputs alone."},
        "--at-once": {
            "type": POSITIVE,
            "default": 1,
            "help": f"Inputs to send at once; of several, the last are {SIDE_BY_SIDE} large images of each format.",
        },
    },
    columns="what is sent {family} | inputs {inputs:,} | answered {statuses} | failures {failures:,} | "
    "slowest, s {seconds:.1f} | bystander waits, s {wait_s:.2f} | memory, MB {memory_mb:,.0f} | "
    "share of the limit {share_of_limit:.2f} | number of the worst {number:d}",
    failed=lambda row: bool(row["finding"]),
    shown=families,
    note=note,
)
