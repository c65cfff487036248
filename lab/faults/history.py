"""Records what clients ask and get while faults are done to a server, and finds answers that were not possible.

    ensemble faults history                              # every fault: about half an hour
    ensemble faults history members --requests 1000

Each fault is repeated until the clients have sent the requests. The checker must also find five faults that are planted
into the recorded history. The exit status is 1 if an answer was not possible, or a planted fault was not found. The
records that contradict each other in the first impossible answer are printed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

from ensemble_models.options import POSITIVE
from ensemble_models.writing import write_metadata
from ensemble_serving.transports import Request, once
from lab.benchmark.workloads import Edit, Placement, changed, workload
from lab.faults.campaign import Campaign
from lab.faults.histories import PLANTED, Clients, History, Violation, planted, violations
from lab.faults.scenarios import KILL, SMALL, TWO_OF_EACH, Scenario, lose, lose_replicas, roll, scale
from lab.faults.stage import InForce, Stage, stage
from lab.rows import Row, Rows
from scripts.errors import ScriptError

CLIENTS, REQUESTS = 8, 10_000
MEMBERS = ("resnet", "densenet")
STABLE, OTHER, BAD = 2, 1, 3
NARROW = 4
TTL_S = 20.0
FEEDBACK = {"max_requests": 100_000}
UNCHANGED = changed()
CANARY = {"version": BAD, "share": 0.5, "key": "header:x-user"}


@dataclass(frozen=True)
class Fault(Scenario):
    """A fault; see `Scenario`.

    Attributes:
        change: of the Serve config.
        canaries: see `History.canaries`.
        bound: images that the server admits at a time.
    """

    placement: Placement = "colocated"
    change: Edit = UNCHANGED
    canaries: Mapping[str, int] = field(default_factory=dict)
    bound: int = 256


def _load(here: Stage) -> None:
    """Load the other version of a member, and then the first one again."""
    for number in (OTHER, STABLE):
        began = time.perf_counter()
        body = json.dumps({"parameters": {"version": number}}).encode()
        response = once(here.url, Request("/v2/repository/models/resnet/load", body))
        if not response.ok:
            raise ScriptError(f"version {number} was not loaded: {response.status} {response.body[:200]!r}")
        here.told.loaded("resnet", number, began)
        time.sleep(1)


def _wait(_: Stage) -> None:
    """Let the clients decide: the canary is bad, or the bound is low, from the start."""
    time.sleep(1)


LABELLED = changed({"feedback": FEEDBACK})
OPERATED = changed({"access": {"operators": "anyone"}, "feedback": FEEDBACK})
NARROWED = changed({"ingress": {"max_in_flight": NARROW, "max_parts": NARROW}, "feedback": FEEDBACK})


def _cached(config: dict[str, Any]) -> None:
    OPERATED(config)
    changed({"cache": {"max_bytes": "64MiB", "ttl_s": TTL_S}})(config)


def _with_canary(config: dict[str, Any]) -> None:
    LABELLED(config)
    config["applications"][0]["args"]["members"][0]["canary"] = CANARY


FAULTS = (
    Fault(
        "members", "a member's only replica is killed", lose_replicas(KILL, "ResNet"), {}, "separate", change=LABELLED
    ),
    Fault(
        "nodes",
        "transformer, combiner, labeler are killed",
        lose_replicas(KILL, *SMALL),
        {},
        "separate",
        1,
        LABELLED,
    ),
    Fault("ingress", "one of two replicas of the ingress is killed", lose_replicas(KILL, "Ingress"), {"Ingress": 2}),
    Fault("haproxy", "HAProxy is killed", lose(KILL, "haproxy"), change=LABELLED),
    Fault("rollout", "the one process of all nodes is rolled out anew", roll("Ingress"), change=LABELLED),
    Fault("versions", "another version of a member is loaded, and the first one again", _load, change=OPERATED),
    Fault("cached", "the same, with a cache", _load, change=_cached),
    Fault("scale", "every node goes from two replicas to one, and back", scale(1, 2), TWO_OF_EACH, "separate"),
    Fault(
        "canary",
        "the canary of half of the users answers wrongly",
        _wait,
        change=_with_canary,
        canaries={"resnet": BAD},
    ),
    Fault("overload", f"{CLIENTS} clients, and room for {NARROW} images", _wait, change=NARROWED, bound=NARROW),
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
        with (
            stage(watched, fault.placement, fault.replicas, 1, change=fault.change) as here,
            Clients(here.url, images, CLIENTS, seed, labels=fault.change is not UNCHANGED) as clients,
        ):
            here.told.in_force += [
                InForce(*each) for each in (*dict.fromkeys(MEMBERS, STABLE).items(), *fault.canaries.items())
            ]
            while len(clients.records) < requests:
                fault.do(here)
    records = tuple(sorted(clients.records, key=lambda each: each.start))
    # The client that sees when all is whole again takes part of the bound, and is not recorded.
    told = here.told
    return History(records, tuple(told.in_force), tuple(told.away), fault.bound - 1, TTL_S, fault.canaries)


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


HISTORY = Campaign(
    name="history",
    help=__doc__,
    measure=measure,
    flags={
        "--requests": {"type": POSITIVE, "default": REQUESTS, "show_default": True, "help": "Per fault."},
        "--seed": {"type": int, "default": 1, "help": "Of the images and users; default: 1."},
    },
    kind="fault",
    faults=FAULTS,
    columns="fault {what} | requests {requests:,} | refused {refused:,} | failed {failed:,} | degraded {degraded:,} | "
    "labels {labels:,} | cached {hits:,} | versions {versions} | impossible {impossible} | planted {planted} | "
    "not found {missed}",
    failed=lambda row: bool(row["impossible"] or row["missed"]),
    note=lambda row: f"{row['fault']}: {row['first']}" if row["first"] else "",
)
