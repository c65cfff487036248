"""Records what clients ask and get while faults are done to a server, and finds answers that were not possible.

    ensemble faults history                              # every fault: about half an hour
    ensemble faults history members --requests 1000

Each fault is repeated until the clients have sent the requests. The checker must also find five faults that are planted
into the recorded history. The exit status is 1 if an answer was not possible, or a planted fault was not found. The
records that contradict each other in the first impossible answer are printed.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import openvino as ov
from openvino import opset13 as op

from ensemble_models.options import POSITIVE, Command, file_options, option
from ensemble_models.writing import write_metadata
from ensemble_serving.transports import Request, once
from lab.benchmark.workloads import changed, workload
from lab.faults.campaign import fault_argument, parts, report
from lab.faults.histories import PLANTED, History, Record, Violation, planted, violations
from lab.faults.scenarios import KILL, SMALL, TWO_INGRESSES, TWO_OF_EACH, lose, roll, scale
from lab.faults.stage import PAUSE_S, URL, Fault, InForce, Stage, stage
from lab.rows import Row, Rows
from scripts.errors import ScriptError

CLIENTS, REQUESTS = 8, 10_000
MEMBERS = ("resnet", "densenet")
STABLE, OTHER, BAD = 2, 1, 3
# Images that a server admits at a time: by default, and when there is room for few.
BOUND, NARROW = 256, 4
TTL_S = 20.0
FEEDBACK = {"max_requests": 100_000}
CANARY = {"version": BAD, "share": 0.5, "key": "header:x-user"}
# Of the clients: what they ask, how many users there are, and the share of answers that get a true label.
PATH = "/classify?members=true&top_k=10"
USERS, LABELLED_SHARE, TIMEOUT_S = 16, 0.05, 60.0
COLUMNS = (
    "fault {what} | requests {requests:,} | refused {refused:,} | failed {failed:,} | degraded {degraded:,} | "
    "labels {labels:,} | cached {hits:,} | versions {versions} | impossible {impossible} | planted {planted} | "
    "not found {missed}"
)


def _load(here: Stage) -> None:
    """Load the other version of a member, and then the first one again."""
    for number in (OTHER, STABLE):
        began = time.perf_counter()
        body = json.dumps({"parameters": {"version": number}}).encode()
        response = once(URL, Request("/v2/repository/models/resnet/load", body))
        if not response.ok:
            raise ScriptError(f"version {number} was not loaded: {response.status} {response.body[:200]!r}")
        here.loaded("resnet", number, began)
        time.sleep(1)


def _wait(_: Stage) -> None:
    """Let the clients decide: the canary is bad, or the bound is low, from the start."""
    time.sleep(1)


LABELLED = changed({"feedback": FEEDBACK})
OPERATED = changed({"access": {"operators": "anyone"}, "feedback": FEEDBACK})
CACHED = changed(
    {"access": {"operators": "anyone"}, "feedback": FEEDBACK, "cache": {"max_bytes": "64MiB", "ttl_s": TTL_S}}
)
NARROWED = changed({"ingress": {"max_in_flight": NARROW, "max_parts": NARROW}, "feedback": FEEDBACK})


def _with_canary(config: dict[str, Any]) -> None:
    LABELLED(config)
    config["applications"][0]["args"]["members"][0]["canary"] = CANARY


colocated = partial(Fault, placement="colocated", change=LABELLED)
FAULTS = (
    Fault("members", "a member's only replica is killed", lose(KILL, "ResNet"), change=LABELLED),
    Fault("nodes", "transformer, combiner, labeler are killed", lose(KILL, *SMALL), change=LABELLED),
    Fault(
        "ingress",
        "one of two replicas of the ingress is killed",
        lose(KILL, "Ingress"),
        TWO_INGRESSES,
        "colocated",
    ),
    colocated("haproxy", "HAProxy is killed", lose(KILL, "haproxy")),
    colocated("rollout", "the one process of all nodes is rolled out anew", roll("Ingress")),
    colocated("versions", "another version of a member is loaded, and the first one again", _load, change=OPERATED),
    colocated("cached", "the same, with a cache", _load, change=CACHED),
    Fault("scale", "every node goes from two replicas to one, and back", scale(1, 2), TWO_OF_EACH),
    colocated("canary", "the canary of half of the users answers wrongly", _wait, change=_with_canary),
    colocated("overload", f"{CLIENTS} clients, and room for {NARROW} images", _wait, change=NARROWED),
)


class Clients:
    """Clients that send one request after the other, without retries, until the block ends.

    Attributes:
        records: what they asked and got.
    """

    def __init__(self, images: Sequence[bytes], seed: int, *, labels: bool) -> None:
        """Set the images, and whether the clients also send true labels."""
        self.records: list[Record] = []
        self._images, self._seed, self._labels = images, seed, labels
        self._over = threading.Event()

    def __enter__(self) -> Clients:
        """Start the clients."""
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients = [self._pool.submit(self._client, number) for number in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last answers, then send every accepted label again."""
        self._over.set()
        self._pool.shutdown()
        for each in self._clients:
            each.result()
        with httpx.Client(base_url=URL, timeout=TIMEOUT_S) as client:
            for label in [each for each in self.records if each.kind == "label" and each.status == 200]:
                self._label(client, replace(label, kind="audit"))

    def _client(self, number: int) -> None:
        """Send images, and true labels for some of the answers, one after the other."""
        chance = random.Random(f"{self._seed} {number}")
        with httpx.Client(base_url=URL, timeout=TIMEOUT_S) as client:
            for sent in itertools.count(1):
                if self._over.is_set():
                    return
                image, own = chance.randrange(len(self._images)), f"{self._seed}-{number}-{sent}"
                asked = Record("image", str(image), f"user-{chance.randrange(USERS)}", own)
                headers = {"content-type": "image/jpeg", "x-user": asked.user, "x-request-id": own}
                answered = self._recorded(client, asked, PATH, content=self._images[image], headers=headers)
                if answered.status != 200:
                    time.sleep(PAUSE_S)
                elif self._labels and chance.random() < LABELLED_SHARE:
                    self._label(client, Record("label", own))

    def _label(self, client: httpx.Client, asked: Record) -> None:
        self._recorded(client, asked, "/feedback", json={"request_id": asked.subject, "label": "cat"})

    def _recorded(self, client: httpx.Client, asked: Record, path: str, **request: Any) -> Record:
        """Send a request, and record what comes back, if anything."""
        record = replace(asked, start=time.perf_counter(), status=0, answer={}, answered_id="")
        with suppress(httpx.TransportError):
            response = client.post(path, **request)
            answered_id = response.headers.get("x-request-id", "")
            record = replace(record, status=response.status_code, answered_id=answered_id, answer=_json(response))
        self.records.append(replace(record, end=time.perf_counter()))
        return record


def _json(response: httpx.Response) -> dict[str, Any]:
    """Read an answer; what HAProxy answers itself need not be an object of JSON."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def add_bad_version(root: Path) -> None:
    """Write a version of the ResNet that mistakes each class for the next one."""
    old, new = root / "resnet" / str(STABLE), root / "resnet" / str(BAD)
    model = ov.Core().read_model(old / "model.xml")
    output = model.outputs[0]
    [consumer] = output.get_target_inputs() or output.node.input(0).get_source_output().get_target_inputs()
    classes = output.partial_shape[1].get_length()
    order = op.constant(np.roll(np.arange(classes), 1))
    consumer.replace_source_output(op.gather(consumer.get_source_output(), order, op.constant(1)).output(0))
    new.mkdir()
    ov.save_model(model, new / "model.xml", compress_to_fp16=False)
    metadata = json.loads((old / "metadata.json").read_text(encoding="utf-8"))
    write_metadata(new, {**{key: value for key, value in metadata.items() if key != "sha256"}, "version": BAD})


def recorded(fault: Fault, requests: int, seed: int) -> History:
    """Repeat a fault until clients have sent some requests, and return their history.

    Raises ScriptError if the server did not start, or was not whole again in time.
    """
    load = workload("embedded", "int8")
    with tempfile.TemporaryDirectory(prefix="es-") as temporary:
        root = Path(temporary)
        for name in MEMBERS:
            shutil.copytree(load.repository / name, root / name)
        add_bad_version(root)
        # The first image is for the clients that see when all is whole again: it would fill a cache unrecorded.
        watched = replace(load, repository=root, images=load.images[:1])
        images = [path.read_bytes() for path in load.images[1:]]
        with stage(watched, fault, 1) as here:
            config = here.config["applications"][0]["args"]
            canaries = {each["name"]: each["canary"]["version"] for each in config["members"] if "canary" in each}
            here.in_force += [InForce(name, STABLE) for name in MEMBERS]
            here.in_force += [InForce(name, version) for name, version in canaries.items()]
            with Clients(images, seed, labels="feedback" in config) as clients:
                while len(clients.records) < requests:
                    fault.do(here)
    records = tuple(sorted(clients.records, key=lambda each: each.start))
    bound = config.get("ingress", {}).get("max_in_flight", BOUND)
    # The client that sees when all is whole again takes part of the bound, and is not recorded.
    return History(records, tuple(here.in_force), tuple(here.away), bound - 1, TTL_S, canaries)


def measure(fault: Fault, requests: int, seed: int) -> Rows:
    """Record a fault's history, check it, and plant the faults that it has room for."""
    history = recorded(fault, requests, seed)
    found = violations(history)
    broken = {name: planted(history, plant, seed) for name, (plant, _) in PLANTED.items()}
    missed = [
        name
        for name, each in broken.items()
        if each is not None and PLANTED[name][1] not in {found.rule for found in violations(each)}
    ]
    images = [each for each in history.records if each.kind == "image"]
    row: Row = {
        "requests": len(images),
        "refused": sum(each.code == "overloaded" for each in images),
        "failed": sum(each.status != 200 and each.code != "overloaded" for each in images),
        "degraded": sum(bool(each.answer.get("missing")) for each in images),
        "labels": sum(each.kind == "label" and each.status == 200 for each in history.records),
        "hits": sum(each.is_hit for each in images),
        "versions": len({(member, number) for each in images for member, number in each.versions.items()}),
        "faults": len(history.away),
        "impossible": len(found),
        "planted": sum(each is not None for each in broken.values()),
        "missed": missed,
        "first": _shown(found[0]) if found else "",
    }
    return [row]


def _shown(found: Violation) -> str:
    """Write an impossible answer, with its records."""
    names = ("label", "model_versions", "cache", "missing", "error")
    lines = [
        f"{each.start:.3f} to {each.end:.3f} {each.kind} {each.subject} {each.user}: {each.status} "
        + json.dumps({name: each.answer[name] for name in names if name in each.answer})
        for each in found.records
    ]
    return f"{found.rule}: {found.why}; " + "; ".join(lines)


@click.command("faults history", cls=Command, help=__doc__)
@fault_argument("fault", FAULTS)
@option("--requests", type=POSITIVE, default=REQUESTS, help="Per fault.")
@option("--seed", type=int, default=1, help="Of the images and users.")
@file_options("json", "markdown")
def main(names: Sequence[str], requests: int, seed: int, **files: Path | None) -> None:
    """Record a history for each fault, and check it."""
    report(
        parts("fault", FAULTS, names, partial(measure, requests=requests, seed=seed)),
        COLUMNS,
        files,
        failed=lambda row: bool(row["impossible"] or row["missed"]),
        note=lambda row: f"{row['fault']}: {row['first']}" if row["first"] else "",
    )
