"""What a request costs by the form that its images have: lists, tensors, JPEG, shared memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import Workload, originals, square, trivial
from lab.experiments.asking import REGION, Asking, region, register, share_memory
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows
from lab.experiments.forms import (
    DECODING,
    DOUBLES,
    FORMS,
    JPEG,
    LIST_VALUE,
    LISTS,
    RAW_FLOATS,
    Form,
    Pixels,
    shared,
)
from lab.pictures.chart import Bar
from lab.reported import of
from scripts.results import Table

MEMBER = "resnet"
QUALITY, EDGE = 75, 224
PIXELS, PHOTOGRAPH = f"{EDGE}x{EDGE}", "photographs"
BATCHES = (1, 4)
# Enough for the lists of the largest batch; the server's default would refuse one image.
MOST_ELEMENTS = 2_000_000
IDLE_S, FEWEST = 3.0, 5
# Images per second whose traffic is told.
RATE = 1000
DIFFERS = "the client and a model that does no work on one machine of two cores"


class Cost(NamedTuple):
    """What a form cost; None is what was not measured.

    Attributes:
        images: of which size.
        form: its name.
        batch: images a request.
        bytes: on the wire, an image: of the body or message, without headers.
        client_ms: of the client's CPU, an image; without making the pixels or JPEGs.
        server_ms: of the server's CPU, an image; of the parsing alone if there is no p50.
        p50_ms: from the encoding to the answer.
    """

    images: str
    form: str
    batch: int
    bytes: float
    client_ms: float
    server_ms: float | None
    p50_ms: float | None


def _cpu_ms(work: Callable[[], Any], seconds: float) -> float:
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while count < FEWEST or time.perf_counter() - began < seconds:
        work()
        count += 1
    return (time.process_time() - cpu) / count * 1000


def cost(
    images: str, form: Form, content: Any, seconds: float, ask: Asking | None, used: Callable[[], float] = lambda: 0.0
) -> Cost:
    """What a form costs.

    Args:
        images: their size, for the table.
        form: how they are sent.
        content: a batch, uint8 [N,H,W,3] or JPEGs.
        seconds: how long it is sent.
        ask: the client; None to send nothing.
        used: the server's CPU seconds so far.
    """
    batch = len(content)
    request = form.encode(content, MEMBER)
    size = len(request.body) / batch
    if ask is None or form.way is None or not ask(form, request):
        client = _cpu_ms(lambda: form.encode(content, MEMBER), seconds / 2) / batch
        parse = form.parse
        parsing = None if parse is None else _cpu_ms(lambda: parse(request.body), seconds / 2) / batch
        return Cost(images, form.name, batch, size, client, parsing, None)
    latencies: list[float] = []
    before, cpu, began = used(), time.process_time(), time.perf_counter()
    while len(latencies) < FEWEST or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        ask(form, form.encode(content, MEMBER))
        latencies.append(time.perf_counter() - start)
    each = 1000 / (len(latencies) * batch)
    client, server = (time.process_time() - cpu) * each, (used() - before) * each
    return Cost(images, form.name, batch, size, client, server, float(np.median(latencies)) * 1000)


def _idle(server: Running) -> Callable[[], float]:
    """The server's CPU seconds beyond what it uses while nobody asks."""
    before, began = server.cpu_s(), time.perf_counter()
    time.sleep(IDLE_S)
    rate = (server.cpu_s() - before) / (time.perf_counter() - began)
    start = time.perf_counter()
    return lambda: server.cpu_s() - rate * (time.perf_counter() - start)


def _edit(config: dict[str, Any]) -> None:
    args = config["applications"][0]["args"]
    args["members"] = [member for member in args["members"] if member["name"] == MEMBER]
    args["ingress"] = {**args.get("ingress", {}), "max_elements": MOST_ELEMENTS}
    share_memory(config)


def jpeg(image: Pixels) -> bytes:
    """A JPEG of the quality that is compared."""
    return bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])


def check() -> None:
    """Raise ScriptError if there are no photographs, or what a form needs is missing."""
    originals()
    for form in FORMS:
        if form.of == "pixels":
            form.encode(np.zeros((1, 1, 1, 3), np.uint8), MEMBER)


def measure(seconds: float) -> Sequence[Part]:
    """Each form with each number of images, and JPEGs of whole photographs, by one server."""
    return [Part("forms", partial(_measured, seconds))]


def _measured(seconds: float) -> Rows:
    pictures, costs = originals(), []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        load = Workload("trivial", trivial(Path(folder), (EDGE, EDGE)), 1, (EDGE, EDGE), (), None)
        server = stack.enter_context(running(OURS["colocated"], load, _edit))
        file = stack.enter_context(region(max(BATCHES) * EDGE * EDGE * 3))
        ask = Asking(url := f"http://127.0.0.1:{HTTP_PORT}", f"grpc://127.0.0.1:{GRPC_PORT}")
        stack.callback(ask.close)
        register(url, file)
        used = _idle(server)
        for batch in BATCHES:
            chosen = [pictures[n % len(pictures)] for n in range(batch)]
            squares = np.stack([square(image, EDGE) for image in chosen])
            sent = {"pixels": squares, "jpeg": [jpeg(image) for image in squares]}
            for form in tqdm((*FORMS, shared(file, REGION)), unit="form"):
                costs.append(cost(PIXELS, form, sent[form.of], seconds, ask, used))
            whole = [jpeg(image) for image in chosen]
            costs += [cost(PHOTOGRAPH, form, whole, seconds, ask, used) for form in FORMS if form.of == "jpeg"]
    return [one._asdict() for one in costs]


def table(rows: Rows) -> Table:
    """A line for each form with each number of images."""
    lines = []
    for one in (Cost(**row) for row in rows):
        server = "" if one.server_ms is None else f"{one.server_ms:.2f}{'' if one.p50_ms else ' (parsing)'}"
        p50 = "not sent" if one.p50_ms is None else f"{one.p50_ms:.1f}"
        traffic = one.bytes * 8 * RATE / 1e9
        numbers = f"{one.bytes:,.0f}", f"{traffic:.2f}", f"{one.client_ms:.2f}", server, p50
        lines.append([one.images, one.form, str(one.batch), *numbers])
    heads = ("images", "form", "images per request", "bytes/image", f"Gb/s at {RATE:,} images/s")
    return Table((*heads, "client CPU, ms/image", "server CPU, ms/image", "p50, ms"), lines, words=range(2))


def _alone(rows: Rows) -> dict[str, Cost]:
    """By the name of its form, what one image of the small size costs."""
    costs = [Cost(**row) for row in rows]
    return {one.form: one for one in costs if one.images == PIXELS and one.batch == 1}


def compare(rows: Rows) -> Mapping[str, Here]:
    """The figures of the ladder; an overhead is the latency, because the model does no work."""
    alone = _alone(rows)

    def latency(form: str, differs: str) -> Here:
        p50 = alone[form].p50_ms
        return Here(p50, "not sent" if p50 is None else f"{p50:.1f} ms", f"{differs}; {DIFFERS}")

    times, traffic = alone[RAW_FLOATS].bytes / alone[JPEG].bytes, alone[RAW_FLOATS].bytes * 8 * RATE / 1e9
    decoding = alone[DECODING].server_ms or 0.0
    lists, doubles = (latency(form, "").text for form in (LIST_VALUE, DOUBLES))
    same = "the same measurement: the server never reads numbers one by one"
    return {
        "overhead of an image of 224x224 as JSON over REST, more than": latency(LISTS, "the limit on lists was raised"),
        "overhead of the image as repeated numbers (Tensor) over gRPC": latency(DOUBLES, "another server"),
        "overhead of the image as repeated numbers, parsed faster": latency(DOUBLES, same),
        "the image as a ListValue": Here(None, f"{lists}, and {doubles} as Tensor", DIFFERS),
        "bytes of the image as floats for each byte of its JPEG": Here(
            times, f"{times:.0f} times", f"quality {QUALITY}, other photographs"
        ),
        "decoding the JPEG": Here(decoding, f"{decoding:.2f} ms", "one core of another CPU"),
        "traffic of 1,000 float32 images per second": Here(traffic, f"{traffic:.2f} Gb/s", "computed from the bytes"),
    }


def picture(rows: Rows) -> Groups:
    """The latency of one image by form, what was reported first."""
    told = [Bar(each.what, each.value, each.text) for each in of("payloads") if each.unit == "ms" and each.value]
    here = [
        Bar(one.form, one.p50_ms, f"{one.p50_ms:.1f} ms, {one.bytes / 1000:,.1f} KB", ours="JPEG" in one.form)
        for one in _alone(rows).values()
        if one.p50_ms is not None
    ]
    return [("reported", told), ("here; JPEGs are coloured", here)]


PAYLOADS = Experiment(
    "payloads",
    "An image of 224x224 from the client to the answer, ms, by its form; less is better",
    "Pixels of 224x224 and JPEGs of quality 75, a model that does no work, one client, one process",
    check,
    measure,
    table,
    compare,
    picture,
    seconds=2.0,
    ascending=True,
)
