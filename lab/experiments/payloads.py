"""What a request costs by the form that its images have: lists, tensors, JPEG, shared memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from lab import reported
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import Workload, originals, square, trivial
from lab.experiments import forms
from lab.experiments.experiment import Experiment, Groups, Here
from lab.experiments.forms import FORMS, REGION, Asking, Form, Pixels, region, register, share_memory, shared
from lab.pictures import Bar
from lab.rows import Part, Row, Rows

MEMBER = "resnet"
QUALITY, EDGE = 75, 224
PIXELS, PHOTOGRAPH = f"{EDGE}x{EDGE}", "photographs"
BATCHES = (1, 4)
# Enough for the lists of the largest batch; the server's default would refuse one image.
MOST_ELEMENTS = 2_000_000
IDLE_S, FEWEST = 3.0, 5
# Images per second whose traffic is told.
RATE = 1000


class Cost(NamedTuple):
    """The cost of a form; None for a figure that was not measured.

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
    """Measure a form.

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
    """Count the server's CPU seconds beyond what it uses while nobody asks."""
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
    """Encode a JPEG of the quality that is compared."""
    return bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])


def check() -> None:
    """Raise ScriptError if photographs or a package for a form are missing."""
    originals()
    for form in FORMS:
        if form.of == "pixels":
            form.encode(np.zeros((1, 1, 1, 3), np.uint8), MEMBER)


def every_form(seconds: float) -> Rows:
    """Send each form with each number of images, and JPEGs of whole photographs, to one server."""
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


def shown(rows: Rows) -> Rows:
    """Add the traffic, and mark forms that were only parsed or not sent."""
    return [
        {
            **row,
            "traffic": row["bytes"] * 8 * RATE / 1e9,
            "server": ""
            if row["server_ms"] is None
            else f"{row['server_ms']:.2f}{'' if row['p50_ms'] else ' (parsing)'}",
            "p50": "not sent" if row["p50_ms"] is None else f"{row['p50_ms']:.1f}",
        }
        for row in rows
    ]


def _alone(rows: Rows) -> dict[str, Row]:
    """Find what one image of the small size costs, by the name of its form."""
    return {row["form"]: row for row in rows if row["images"] == PIXELS and row["batch"] == 1}


def compare(rows: Rows) -> Mapping[str, Here]:
    """Compare the forms of the document; an overhead is the latency, because the model does no work."""
    alone = _alone(rows)

    def latency(form: str) -> Here:
        p50 = alone[form]["p50_ms"]
        return Here(p50, "not sent" if p50 is None else f"{p50:.1f} ms")

    floats, decoding = alone[forms.RAW_FLOATS], alone[forms.DECODING]["server_ms"] or 0.0
    times, doubles = floats["bytes"] / alone[forms.JPEG]["bytes"], latency(forms.DOUBLES)
    server = alone[forms.DOUBLES]["server_ms"] or 0.0
    serialized = {name: alone[form]["client_ms"] for name, form in forms.SERIALIZED.items()}
    return {
        "overhead of JSON over REST, more than": latency(forms.LISTS),
        "overhead of Tensor, a vector of doubles, over gRPC": doubles,
        "Tensor's deserialization": Here(server, f"{server:.1f} ms of CPU of the whole server"),
        "overhead of Tensor, read by numpy.frombuffer": Here(
            doubles.value, f"{doubles.text} as above: the server never reads numbers one by one"
        ),
        "ListValue against Tensor": Here(None, f"{latency(forms.LIST_VALUE).text}, and {doubles.text} as Tensor"),
        "bytes of the image for each byte of its JPEG": Here(times, f"{times:.0f} times"),
        "serialization by NumPy, PyArrow and Protobuf": Here(
            None, ", ".join(f"{name} {ms:.2f} ms" for name, ms in serialized.items()) + " of CPU of the client"
        ),
        "binary payloads against JSON": Here(
            None, f"binary {latency(forms.BINARY_UINT8).text}, JSON {latency(forms.NESTED).text}"
        ),
        "decoding the JPEG by OpenCV": Here(decoding, f"{decoding:.2f} ms"),
        "traffic of 1,000 float32 images per second": Here(
            floats["traffic"], f"{floats['traffic']:.2f} Gb/s, computed from the bytes"
        ),
    }


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


PAYLOADS = Experiment(
    name="payloads",
    title="An image of 224x224 from the client to the answer, ms, by its form; less is better",
    setting="Pixels of 224x224 and JPEGs of quality 75, a model that does no work, one client, one process",
    check=check,
    parts=lambda seconds: [Part("forms", partial(every_form, seconds), loads=len(BATCHES) * (len(FORMS) + 4))],
    columns=f"images {{images}} | form {{form}} | images per request {{batch:d}} | bytes/image {{bytes:,.0f}} | "
    f"Gb/s at {RATE:,} images/s {{traffic:.2f}} | client CPU, ms/image {{client_ms:.2f}} | "
    f"server CPU, ms/image {{server:>}} | p50, ms {{p50:>}}",
    picture=picture,
    seconds=2.0,
    shown=shown,
    compare=compare,
    differs=f"another server and other photographs; JPEGs of quality {QUALITY}; the limit on lists was raised; the "
    "client and a model that does no work are on one machine of two cores",
)
