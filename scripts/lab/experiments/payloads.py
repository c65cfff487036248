"""Measures what a request costs by the form that its images have: JSON, tensors, JPEG, shared memory.

    ensemble experiments payloads --markdown payloads.md --plot payloads.svg

A model that does no work is served by one process, at CIFAR's size and at 224x224; pixels are sent to it as a member,
JPEGs of quality 75, of that size and of a photograph's own, to the ensemble that it is alone in. One client sends one
request after the other. What this application does not take, or refuses, is measured without being sent: a client's
encoding, and a server's parsing. The photographs are those of `ENSEMBLE_DATA`, or scikit-image's. It needs the
`benchmark` extra.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from scripts.errors import errors_in_one_line
from scripts.lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from scripts.lab.benchmark.workloads import Workload, originals, square, trivial
from scripts.lab.experiments.asking import REGION, Asking, region, register, share_memory
from scripts.lab.experiments.forms import FORMS, Form, Pixels, shared
from scripts.results import Table, add_files, check_files, drawing, write_files
from scripts.serve.environment import set_up

MEMBER = "resnet"
QUALITY = 75
EDGES = {"32x32": 32, "224x224": 224}
PHOTOGRAPH = "photographs"
BATCHES = (1, 4, 16)
IDLE_S, FEWEST = 3.0, 5
HEADINGS = ("images", "form", "batch", "bytes/image", "client CPU, ms/image", "server CPU, ms/image", "p50, ms")


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
    share_memory(config)


def jpeg(image: Pixels) -> bytes:
    """A JPEG of the quality that is compared."""
    return bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])


def measure(seconds: float, batches: Sequence[int], folder: Path) -> list[Cost]:
    """Serve each size and send each form of it.

    Args:
        seconds: for each form and batch.
        batches: images a request.
        folder: for the models.

    Raises:
        ScriptError: a request failed, or the server did not start.
    """
    pictures = originals()
    for form in FORMS:
        # What is missing is told before anything is served.
        if form.of == "pixels":
            form.encode(np.zeros((1, 1, 1, 3), np.uint8), MEMBER)
    costs: list[Cost] = []
    progress = tqdm(total=len(batches) * (2 * (len(FORMS) + 1) + _jpeg_forms()), unit="form")
    for name, edge in EDGES.items():
        load = Workload("trivial", trivial(folder / name, (edge, edge)), 1, (edge, edge), (), None)
        with ExitStack() as stack:
            server = stack.enter_context(running(OURS["colocated"], load, _edit))
            file = stack.enter_context(region(max(batches) * edge * edge * 3))
            ask = Asking(url := f"http://127.0.0.1:{HTTP_PORT}", f"grpc://127.0.0.1:{GRPC_PORT}")
            stack.callback(ask.close)
            register(url, file)
            used = _idle(server)
            for batch in batches:
                squares = np.stack([square(pictures[n % len(pictures)], edge) for n in range(batch)])
                encoded = [jpeg(image) for image in squares]
                for form in (*FORMS, shared(file, REGION)):
                    content = squares if form.of == "pixels" else encoded
                    costs.append(cost(name, form, content, seconds, ask, used))
                    progress.update()
                if edge == max(EDGES.values()):
                    whole = [jpeg(pictures[n % len(pictures)]) for n in range(batch)]
                    for form in FORMS:
                        if form.of == "jpeg":
                            costs.append(cost(PHOTOGRAPH, form, whole, seconds, ask, used))
                            progress.update()
    progress.close()
    return [*costs, *(_of_photograph(form, pictures) for form in FORMS if form.of == "pixels")]


def _jpeg_forms() -> int:
    return sum(form.of == "jpeg" for form in FORMS)


def _of_photograph(form: Form, pictures: Sequence[Pixels]) -> Cost:
    """What the pixels of one whole photograph, of middling size, would cost; no member takes them."""
    middling = sorted(pictures, key=lambda image: image.size)[len(pictures) // 2]
    return cost(PHOTOGRAPH, form, middling[None], 0, None)


def cells(one: Cost) -> list[str]:
    """A line of the table."""
    server = "" if one.server_ms is None else f"{one.server_ms:.2f}{'' if one.p50_ms else ' (parsing)'}"
    p50 = "not sent" if one.p50_ms is None else f"{one.p50_ms:.1f}"
    return [one.images, one.form, str(one.batch), f"{one.bytes:,.0f}", f"{one.client_ms:.2f}", server, p50]


def plot(costs: Sequence[Cost], path: Path) -> None:
    """Bytes and CPU of one image of 224x224 by form; PNG or SVG by the file's name."""
    shown = [one for one in costs if one.images == max(EDGES, key=EDGES.__getitem__) and one.batch == 1]
    shown.sort(key=lambda one: one.bytes)
    names = [one.form + ("" if one.p50_ms else " *") for one in shown]
    with drawing(path, (10, 4.5), columns=2) as [wire, cpu]:
        wire.barh(names, [one.bytes for one in shown], color="tab:blue")
        wire.set_xscale("log")
        wire.set_xlabel("bytes on the wire, an image")
        clients = [one.client_ms for one in shown]
        cpu.barh(names, clients, label="client", color="tab:orange")
        cpu.barh(names, [one.server_ms or 0 for one in shown], left=clients, label="server", color="tab:green")
        cpu.set_xlabel("CPU, ms an image   (* not sent: encoding and parsing alone)")
        cpu.legend(frameon=False)


def report(costs: Sequence[Cost], args: argparse.Namespace) -> None:
    """Print what each form costs, and write the files that were asked for."""
    order = [*EDGES, PHOTOGRAPH]
    lines = [cells(one) for one in sorted(costs, key=lambda one: (order.index(one.images), one.batch))]
    table = Table(HEADINGS, lines, words=range(2), title="What a request costs, by the form of its images")
    table.show()
    write_files(args, table, [one._asdict() for one in costs], lambda path: plot(costs, path))


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, measure and report."""
    description = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ensemble experiments payloads", description=__doc__, formatter_class=description
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each form and batch; default: %(default)s")
    add_files(parser)
    args = parser.parse_args(arguments)
    if args.seconds <= 0:
        parser.error("--seconds must be above 0")
    check_files(parser, args)
    with errors_in_one_line(), tempfile.TemporaryDirectory() as folder:
        set_up()
        report(measure(args.seconds, BATCHES, Path(folder)), args)
