"""Records what clients ask and get while faults are done to a server, and finds answers that were not possible.

    ensemble faults history                              # every fault: about half an hour
    ensemble faults history members --requests 1000

Each fault is repeated until the clients have sent the requests. The checker must also find five faults that are planted
into the recorded history. The exit status is 1 if an answer was not possible, or a planted fault was not found. The
records that contradict each other in the first impossible answer are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

from ensemble_models.writing import write_metadata
from ensemble_serving.transports import Request, once
from lab.benchmark.workloads import Placement, workload
from lab.faults.campaign import Campaign, Done, add_names, chosen
from lab.faults.history.check import Violation, violations
from lab.faults.history.clients import Clients
from lab.faults.history.planted import PLANTED, planted
from lab.faults.history.record import Away, History, InForce
from lab.faults.scenarios import KILL, NODES, SMALL, TWO_OF_EACH, deploy, lose, roll
from lab.faults.stage import Stage, stage
from lab.rows import Part, Row, Rows
from scripts.errors import ScriptError, positive

CLIENTS, REQUESTS = 8, 10_000
MEMBERS = ("resnet", "densenet")
STABLE, OTHER, BAD = 2, 1, 3
NARROW = 4
TTL_S = 20.0
FEEDBACK = {"max_requests": 100_000}
CANARY = {"version": BAD, "share": 0.5, "key": "header:x-user"}
Change = Callable[[dict[str, Any]], None]


@dataclass
class Told:
    """The report of a fault: the versions in force, and the absent parts."""

    in_force: list[InForce]
    away: list[Away] = field(default_factory=list)

    @contextmanager
    def gone(self, *parts: str) -> Iterator[None]:
        """Note that parts are away in the block."""
        start = time.perf_counter()
        yield
        self.away += [Away(part, start, time.perf_counter()) for part in parts]


@dataclass(frozen=True)
class Fault(Done):
    """A fault; see `Done`.

    Attributes:
        do: does it once, and reports it.
        change: of the application's arguments.
        replicas: how many each deployment has, where that is not one.
        placement: where the nodes run.
        canaries: see `History.canaries`.
        bound: images that the server admits at a time.
    """

    do: Callable[[Stage, Told], None]
    change: Change = lambda args: None
    replicas: Mapping[str, int] = field(default_factory=dict)
    placement: Placement = "colocated"
    canaries: Mapping[str, int] = field(default_factory=dict)
    bound: int = 256


def _kill(deployments: tuple[str, ...], *parts: str) -> Callable[[Stage, Told], None]:
    def do(here: Stage, told: Told) -> None:
        for deployment in deployments:
            with told.gone(*parts):
                here.lose_a_replica(deployment, KILL)

    return do


def _kill_haproxy(here: Stage, told: Told) -> None:
    with told.gone("HAProxy"):
        lose(KILL, "haproxy")(here)


def _roll(here: Stage, told: Told) -> None:
    with told.gone("Ingress"):
        roll("Ingress")(here)


def _scale(here: Stage, told: Told) -> None:
    for count in (1, 2):
        with told.gone(*NODES, *MEMBERS):
            deploy(here, NODES, num_replicas=count)
            here.until(partial(_have, here, count))
            here.until_whole()


def _have(here: Stage, count: int) -> bool:
    """Tell whether every node has so many replicas."""
    return all(len(here.replicas(name)) == count for name in NODES)


def _load(here: Stage, told: Told) -> None:
    """Load the other version of a member, and then the first one again."""
    for number in (OTHER, STABLE):
        began = time.perf_counter()
        body = json.dumps({"parameters": {"version": number}}).encode()
        response = once(here.url, Request("/v2/repository/models/resnet/load", body))
        if not response.ok:
            raise ScriptError(f"version {number} was not loaded: {response.status} {response.body[:200]!r}")
        at = next(i for i, span in enumerate(told.in_force) if span.member == "resnet" and span.end == float("inf"))
        told.in_force[at] = replace(told.in_force[at], end=time.perf_counter())
        told.in_force.append(InForce("resnet", number, began))
        time.sleep(1)


def _wait(_: Stage, __: Told) -> None:
    """Let the clients decide: the canary is bad, or the bound is low, from the start."""
    time.sleep(1)


def _with_canary(args: dict[str, Any]) -> None:
    args["members"][0]["canary"] = CANARY
    args["feedback"] = FEEDBACK


def _operated(args: dict[str, Any]) -> None:
    args["access"] = {"operators": "anyone"}
    args["feedback"] = FEEDBACK


def _cached(args: dict[str, Any]) -> None:
    _operated(args)
    args["cache"] = {"max_bytes": "64MiB", "ttl_s": TTL_S}


def _narrow(args: dict[str, Any]) -> None:
    args.setdefault("ingress", {}).update(max_in_flight=NARROW, max_parts=NARROW)
    args["feedback"] = FEEDBACK


def _feedback(args: dict[str, Any]) -> None:
    args["feedback"] = FEEDBACK


FAULTS = (
    Fault(
        "members",
        "a member's only replica is killed",
        _kill(("ResNet",), "resnet"),
        _feedback,
        placement="separate",
    ),
    Fault("nodes", "the transformer, combiner, labeler are killed", _kill(SMALL, "node"), _feedback, {}, "separate"),
    Fault(
        "ingress",
        "one of two replicas of the ingress is killed",
        _kill(("Ingress",), "Ingress"),
        replicas={"Ingress": 2},
    ),
    Fault("haproxy", "HAProxy is killed", _kill_haproxy, _feedback),
    Fault("rollout", "the one process of all nodes is rolled out anew", _roll, _feedback),
    Fault("versions", "another version of a member is loaded, and the first one again", _load, _operated),
    Fault("cached", "the same, with a cache", _load, _cached),
    Fault(
        "scale",
        "every node goes from two replicas to one, and back",
        _scale,
        replicas=TWO_OF_EACH,
        placement="separate",
    ),
    Fault("canary", "the canary of half of the users answers wrongly", _wait, _with_canary, canaries={"resnet": BAD}),
    Fault("overload", f"{CLIENTS} clients, and room for {NARROW} images", _wait, _narrow, bound=NARROW),
)


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

    Raises:
        ScriptError: the server did not start, or was not whole again in time.
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
        told = Told([InForce(name, STABLE) for name in MEMBERS])
        told.in_force += [InForce(name, number) for name, number in fault.canaries.items()]
        with (
            stage(watched, fault.placement, fault.replicas, 1, change=fault.change) as here,
            Clients(here.url, images, CLIENTS, seed, labels=fault.change is not Fault.change) as clients,
        ):
            while len(clients.records) < requests:
                fault.do(here, told)
    records = tuple(sorted(clients.records, key=lambda each: each.start))
    # The client that sees when all is whole again takes part of the bound, and is not recorded.
    return History(records, tuple(told.in_force), tuple(told.away), fault.bound - 1, TTL_S, fault.canaries)


def measure(fault: Fault, requests: int, seed: int) -> Rows:
    """Record a fault's history, check it, and plant the faults that it has room for."""
    history = recorded(fault, requests, seed)
    found = violations(history)
    broken = {name: planted(history, plant, seed) for name, (plant, _) in PLANTED.items()}
    missed = [
        name
        for name, changed in broken.items()
        if changed is not None and PLANTED[name][1] not in {each.rule for each in violations(changed)}
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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the histories."""
    add_names(parser, "fault", [each.name for each in FAULTS])
    parser.add_argument("--requests", type=positive, default=REQUESTS, help="per fault; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the images and users; default: %(default)s")


def parts(args: argparse.Namespace) -> list[Part]:
    """Make each fault that is asked for a part."""
    return chosen("fault", FAULTS, args.names, partial(measure, requests=args.requests, seed=args.seed))


HISTORY = Campaign(
    name="history",
    help=__doc__,
    add_flags=add_flags,
    parts=parts,
    columns="fault {what} | requests {requests:,} | refused {refused:,} | failed {failed:,} | degraded {degraded:,} | "
    "labels {labels:,} | cached {hits:,} | versions {versions} | impossible {impossible} | planted {planted} | "
    "not found {missed}",
    failed=lambda row: bool(row["impossible"] or row["missed"]),
    note=lambda row: f"{row['fault']}: {row['first']}" if row["first"] else "",
)
