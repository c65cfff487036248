"""What a request costs by the form that its images have: lists, tensors, JPEG, shared memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from tqdm import tqdm

from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.measure import Duration, measure
from ensemble_capacity.load.protocols import RequestBuilder
from ensemble_serving.transports import Request
from lab import reported
from lab.benchmark.systems import OURS, URLS, Running, running
from lab.benchmark.workloads import Workload, changed, originals, square, trivial
from lab.experiments.experiment import declared
from lab.experiments.forms import (
    FORMS,
    RAW_FLOATS,
    SELDON_JPEG,
    Form,
    Pixels,
    answers,
    region,
    register,
    share_memory,
    shared,
)
from lab.pictures import Bar, Groups
from lab.rows import FEWEST, Part, Row, Rows
from scripts.errors import ScriptError

MEMBER = "resnet"
QUALITY, EDGE = 75, 224
PIXELS, PHOTOGRAPH = f"{EDGE}x{EDGE}", "photographs"
BATCHES = (1, 4)
# Enough for the lists of the largest batch; the server's default would refuse one image.
MOST_ELEMENTS = 2_000_000
IDLE_S, ENCODED = 3.0, 5
# How long a form is tried, so that its load has enough requests; and the longest load.
TRIED_S, MARGIN, MOST_S = 1.0, 1.1, 200.0
# The forms that carry the same pixels by each of three protocols.
SAME_PIXELS = {"REST, binary uint8": "HTTP", "gRPC, raw uint8": "gRPC", "shared memory, uint8": "shared memory"}
# Images per second whose traffic is told.
RATE = 1000


@dataclass(frozen=True)
class Repeated(RequestBuilder):
    """A protocol of one request, which is sent again and again."""

    one: Request
    name: ClassVar[str] = "payload"

    def request(self, images: Sequence[bytes]) -> Request:
        """Return the request."""
        return self.one


def _cpu_ms(work: Callable[[], Any], seconds: float) -> float:
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while count < ENCODED or time.perf_counter() - began < seconds:
        work()
        count += 1
    return (time.process_time() - cpu) / count * 1000


def cost(
    form: Form, content: Any, seconds: float, urls: Mapping[str, str], used: Callable[[], float] = lambda: 0.0
) -> Row:
    """Send a batch, uint8 [N,H,W,3] or JPEGs, in a form for some seconds, and measure its cost per image.

    The client's CPU covers encoding and requests, but not making pixels or JPEGs; the latency begins with the encoding.
    A form that is not sent has no latency, and the CPU of parsing alone in place of the server's.

    Args:
        form: of the images.
        content: the images.
        seconds: of the load.
        urls: the server's, by protocol.
        used: counts the server's CPU seconds.
    """
    batch, request = len(content), form.encode(content, MEMBER)
    encoding = _cpu_ms(lambda: form.encode(content, MEMBER), seconds / 2) / batch
    row = {"form": form.name, "batch": batch, "bytes": len(request.body) / batch, "client_ms": encoding}
    url = urls.get(form.way or "")
    if url is None or not answers(url, request):
        parsing = form.parse and _cpu_ms(partial(form.parse, request.body), seconds / 2) / batch
        return {**row, "server_ms": parsing, "p50_ms": None}
    target = Target(url, Repeated(request), (b"",))
    seconds = _enough(target, seconds)
    before = used()
    load = measure(target, Closed(1), Duration(0, seconds))
    if load.failed or not load.requests:
        raise ScriptError(f"{form.name}: {load.failed} requests failed: {load.first_error}")
    return {
        **row,
        "requests": load.requests,
        "client_ms": encoding + load.client_cpu_ms / batch,
        "server_ms": 1000 * (used() - before) / (load.requests * batch),
        "p50_ms": load.percentiles_ms["p50"] + encoding * batch,
    }


def _enough(target: Target, seconds: float) -> float:
    """Find how long a load has to be for enough requests, seconds: at least as asked for, and at most `MOST_S`."""
    tried = measure(target, Closed(1), Duration(0, TRIED_S))
    slow = FEWEST * tried.mean_ms / 1000 * MARGIN if tried.requests else MOST_S
    return max(seconds, min(MOST_S, slow))


def _idle(server: Running) -> Callable[[], float]:
    """Count the server's CPU seconds beyond what it uses while nobody asks."""
    before, began = server.cpu_s(), time.perf_counter()
    time.sleep(IDLE_S)
    rate = (server.cpu_s() - before) / (time.perf_counter() - began)
    start = time.perf_counter()
    return lambda: server.cpu_s() - rate * (time.perf_counter() - start)


def one_member(config: dict[str, Any]) -> None:
    """Change a Serve config so that it serves one member, and takes lists of every size here and shared memory."""
    args = config["applications"][0]["args"]
    args["members"] = [member for member in args["members"] if member["name"] == MEMBER]
    changed({"ingress": {"max_elements": MOST_ELEMENTS}})(config)
    share_memory(config)


def jpeg(image: Pixels) -> bytes:
    """Encode a JPEG of the quality that is compared."""
    return bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])


def every_form(seconds: float) -> Iterator[Row]:
    """Send each form with each number of images, and JPEGs of whole photographs, to one server."""
    pictures = originals()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        load = Workload("trivial", trivial(Path(folder), (EDGE, EDGE)), 1, (), None)
        server = stack.enter_context(running(OURS["colocated"], load, one_member))
        file = stack.enter_context(region(max(BATCHES) * EDGE * EDGE * 3))
        register(URLS["http"], file)
        used = _idle(server)
        for batch in BATCHES:
            chosen = [pictures[n % len(pictures)] for n in range(batch)]
            squares = np.stack([square(image, EDGE) for image in chosen])
            sent = {"pixels": squares, "jpeg": [jpeg(image) for image in squares]}
            for form in tqdm((*FORMS, shared(file)), unit="form"):
                yield {"images": PIXELS, **cost(form, sent[form.of], seconds, URLS, used)}
            whole = [jpeg(image) for image in chosen]
            for form in (form for form in FORMS if form.of == "jpeg"):
                yield {"images": PHOTOGRAPH, **cost(form, whole, seconds, URLS, used)}


def shown(rows: Rows) -> Rows:
    """Add the traffic, and mark forms that were only parsed or not sent."""
    found = []
    for row in rows:
        p50, server = row["p50_ms"], row["server_ms"]
        figures = {
            "traffic": row["bytes"] * 8 * RATE / 1e9,
            "server": "" if server is None else f"{server:.2f}{'' if p50 else ' (parsing)'}",
            "p50": "not sent" if p50 is None else f"{p50:.1f}",
            "latency": "not sent" if p50 is None else f"{p50:.1f} ms",
        }
        found.append({**row, **figures})
    return found


def _alone(rows: Rows) -> dict[str, Row]:
    """Find what one image of the small size costs, by the name of its form."""
    return {row["form"]: row for row in rows if row["images"] == PIXELS and row["batch"] == 1}


def compare(rows: Rows) -> Mapping[str, str]:
    """Divide the bytes of an image's pixels by the bytes of its JPEG, and order the protocols of equal pixels."""
    alone = _alone(rows)
    times = alone[RAW_FLOATS]["bytes"] / alone[SELDON_JPEG]["bytes"]
    found = {"network traffic of arrays, in traffic of JPEGs": f"{times:.0f} times, of float32"}
    sent = {way: alone[form]["p50_ms"] for form, way in SAME_PIXELS.items() if form in alone}
    if len(sent) == len(SAME_PIXELS):
        ways = sorted(sent, key=sent.__getitem__)
        found["fastest protocol of three for one image"] = ", ".join(f"{way} {sent[way]:.1f} ms" for way in ways)
    return found


def picture(rows: Rows) -> Groups:
    """Draw the latency of one image by form, with the reported figures first."""
    figures = [each for each in reported.of("payloads") if each.unit == "ms" and each.value]
    here = [
        Bar(row["form"], row["p50_ms"], f"{row['p50_ms']:.1f} ms, {row['bytes'] / 1000:,.1f} KB", "JPEG" in row["form"])
        for row in sorted(_alone(rows).values(), key=lambda row: row["p50_ms"] or 0)
        if row["p50_ms"] is not None
    ]
    told = [Bar(each.subject, each.value or 0.0, each.text) for each in figures]
    return [("reported", told), ("here; JPEGs are coloured", here)]


PAYLOADS = declared(
    "payloads",
    parts=lambda seconds: [Part("forms", partial(every_form, seconds))],
    picture=picture,
    shown=shown,
    tabled=lambda rows: [row for row in _alone(rows).values() if row["p50_ms"] is not None],
    computed=compare,
)
