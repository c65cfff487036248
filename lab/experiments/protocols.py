"""Payload by protocol by load: numbers, binary tensors and JPEGs, each over REST and gRPC, at three rates of arrivals.

One process serves a model that does no work, so that a request costs what its payload and its protocol cost. The rates
are the same for all, in requests per second.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from ensemble_capacity.load.load import Arrivals, Target
from ensemble_capacity.load.measure import Duration, measure
from ensemble_serving.transports import Request
from lab.benchmark.systems import OURS, URLS, WARM_UP_S, running
from lab.benchmark.workloads import Workload, originals, square, trivial
from lab.experiments.experiment import declared, figures
from lab.experiments.forms import FORMS, JPEG, NUMBERS, answers
from lab.experiments.payloads import EDGE, MEMBER, Repeated, jpeg, one_member
from lab.rows import REACHED, Part, Row, Rows, measured, side_by_side
from scripts.errors import ScriptError

RATES, ROUNDS = (10, 30, 90), 3
# A request that waits longer than this is lost; above the capacity a queue would grow without end.
TIMEOUT_S = 10.0
# Before each load the server has worked off the one before: it answers so many requests in turn, each within the time.
IN_TURN, SOON_S, PATIENCE_S = 5, 0.05, 300.0
# The form of each payload, by protocol.
PAYLOADS = {
    "numbers": {"http": "REST, lists of uint8", "grpc": NUMBERS},
    "binary tensor": {"http": "REST, binary uint8", "grpc": "gRPC, raw uint8"},
    "JPEG": {"http": "REST, JPEG", "grpc": JPEG},
}
PROTOCOLS = {"http": "REST", "grpc": "gRPC"}


def requests() -> dict[tuple[str, str], Request]:
    """Make the request of each payload and protocol, with the same picture."""
    pixels = np.stack([square(originals()[0], EDGE)])
    content = {"pixels": pixels, "jpeg": [jpeg(pixels[0])]}
    forms = {form.name: form for form in FORMS}
    return {
        (payload, protocol): forms[name].encode(content[forms[name].of], MEMBER)
        for payload, names in PAYLOADS.items()
        for protocol, name in names.items()
    }


def every_payload(seconds: float) -> Iterator[Row]:
    """Send each payload by each protocol at each rate to one server, in each of the rounds."""
    asked = requests()
    with tempfile.TemporaryDirectory() as folder:
        load = Workload("trivial", trivial(Path(folder), (EDGE, EDGE)), 1, (), None)
        with running(OURS["colocated"], load, one_member):
            for (payload, protocol), request in asked.items():
                if not answers(URLS[protocol], request):
                    raise ScriptError(f"the server refuses the {payload} over {PROTOCOLS[protocol]}")
            for rate, ((payload, protocol), request) in [*product(RATES, asked.items())] * ROUNDS:
                worked_off(asked["JPEG", "http"])
                target = Target(URLS[protocol], Repeated(request), (b"",), timeout_s=TIMEOUT_S)
                row = measure(target, Arrivals(rate), Duration(WARM_UP_S, seconds))
                found = figures(row, "requests", "failed", "requests_per_s", "p50_ms", "p99_ms")
                named = {"payload": payload, "protocol": PROTOCOLS[protocol], "rate": rate}
                yield {**named, "bytes": len(request.body), **found}


def worked_off(request: Request) -> None:
    """Wait until the server answers soon; raise ScriptError if it never does."""
    prompt, give_up = 0, time.monotonic() + PATIENCE_S
    while prompt < IN_TURN:
        began = time.monotonic()
        answered = answers(URLS["http"], request)
        prompt = prompt + 1 if answered and time.monotonic() - began < SOON_S else 0
        if time.monotonic() > give_up:
            raise ScriptError(f"the server has not worked off a load within {PATIENCE_S:g} s")


def shown(rows: Rows) -> Rows:
    """Add the share of the sent requests that failed, percent."""
    return [{**row, "failed_share": 100 * row["failed"] / max(1, row["requests"] + row["failed"])} for row in rows]


def compare(rows: Rows) -> Mapping[str, str]:
    """Compare what each protocol delivers of the highest rate, by payload; nearly the same is no difference."""
    highest = {(row["payload"], row["protocol"]): row for row in measured(rows) if row["rate"] == max(RATES)}
    told = []
    for payload in PAYLOADS:
        if not {(payload, protocol) for protocol in PROTOCOLS.values()} <= highest.keys():
            continue
        rest, grpc = (highest[payload, protocol]["requests_per_s"] for protocol in PROTOCOLS.values())
        verdict = (
            "more by gRPC" if rest < REACHED * grpc else "more by REST" if grpc < REACHED * rest else "no difference"
        )
        told.append(f"{payload}: gRPC {grpc:.0f}/s, REST {rest:.0f}/s, {verdict}")
    return (
        {"protocol that delivers more load, by payload": f"of {max(RATES)}/s sent: {'; '.join(told)}"} if told else {}
    )


PROTOCOLS_BY_PAYLOAD = declared(
    "protocols",
    parts=lambda seconds: [Part("all", partial(every_payload, seconds))],
    ours=lambda row: row["protocol"] == "gRPC",
    shown=shown,
    tabled=lambda rows: side_by_side(rows, "protocol", "payload", "rate"),
    computed=compare,
)
