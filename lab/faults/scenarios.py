"""What is done to a server, each with what is promised of it: a new fault is one more entry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import psutil
from PIL import Image

from ensemble_serving.transports import Request, once
from lab.benchmark.workloads import Placement
from lab.faults.attackers import (
    BRACKET_SENDERS,
    SLOW_BODIES,
    attack,
    send_brackets,
    send_slow_bodies,
    send_stalled_bodies,
)
from lab.faults.stage import Stage
from scripts.serve.api import ServeApi
from scripts.serve.haproxy import BEGINNING_BYTES

NODES = ("JpegTransformer", "ResNet", "DenseNet", "Combiner", "Labeler")
TWO_OF_EACH, THREE = dict.fromkeys(NODES, 2), dict.fromkeys(NODES, 3)
FROZEN_S = 15.0
BOMBS = 8


@dataclass(frozen=True)
class Scenario:
    """A fault.

    Attributes:
        name: on the command line.
        what: what is done, as a sentence for the table.
        do: does it.
        replicas: how many each deployment has, where that is not one.
        placement: where the nodes run.
        nodes: of Ray, all on this machine.
    """

    name: str
    what: str
    do: Callable[[Stage], None]
    replicas: Mapping[str, int] = field(default_factory=dict)
    placement: Placement = "separate"
    nodes: int = 1


KILL, FREEZE = psutil.Process.kill, psutil.Process.suspend


def _lose_replicas(by: Callable[[psutil.Process], None], *deployments: str) -> Callable[[Stage], None]:
    def lose(here: Stage) -> None:
        for deployment in deployments:
            here.lose_a_replica(deployment, by)

    return lose


SMALL = ("JpegTransformer", "Combiner", "Labeler")
_kill_members = _lose_replicas(KILL, "ResNet", "DenseNet", "ResNet")
_kill_nodes = _lose_replicas(KILL, *SMALL)
_kill_ingress = _lose_replicas(KILL, "Ingress", "Ingress", "Ingress")


def _freeze_a_member(here: Stage) -> None:
    [frozen] = here.replicas("ResNet")
    frozen.suspend()
    time.sleep(FROZEN_S)
    if frozen.is_running():
        frozen.resume()
    here.until_whole()


def _lose(by: Callable[[psutil.Process], None], part: str) -> Callable[[Stage], None]:
    def lose(here: Stage) -> None:
        before = here.processes(part)
        for process in before:
            by(process)
        here.until(lambda: bool(set(here.processes(part)) - set(before)))
        here.until_whole()

    return lose


def _deploy(here: Stage, names: Sequence[str], **changed: Any) -> None:
    for options in here.config["applications"][0]["deployments"]:
        if options["name"] in names:
            options.update(changed)
    ServeApi(here.dashboard).deploy(here.config)


def _roll(*names: str) -> Callable[[Stage], None]:
    def roll(here: Stage) -> None:
        before = {name: here.replicas(name) for name in names}
        _deploy(here, names, ray_actor_options={"num_cpus": 0.04})
        here.until(lambda: all(not set(old) & set(here.replicas(name)) for name, old in before.items()))
        here.until_whole()

    return roll


def _scale_down(here: Stage) -> None:
    _deploy(here, NODES, num_replicas=1)
    here.until(lambda: all(len(here.replicas(name)) == 1 for name in NODES))
    here.until_whole()


def _send_scan_bombs(here: Stage) -> None:
    out = BytesIO()
    Image.new("RGB", (7000, 7000)).save(out, "JPEG", progressive=True)
    whole = out.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    bomb = whole[:-2] + last * 1000 + whole[-2:]
    for _ in range(BOMBS):
        once(here.url, Request("/classify", bomb), timeout_s=120)
    here.until_whole()


def _attack(by: Callable[[], None]) -> Callable[[Stage], None]:
    def do(here: Stage) -> None:
        attack(by)
        here.until_whole()

    return do


SCENARIOS = (
    Scenario("members", "a member's only replica is killed, three times", _kill_members),
    Scenario("members-of-two", "one of a member's two replicas is killed, three times", _kill_members, TWO_OF_EACH),
    Scenario("nodes", "the only transformer, combiner and labeler are killed, one after the other", _kill_nodes),
    Scenario("nodes-of-two", "one of two transformers, combiners and labelers is killed", _kill_nodes, TWO_OF_EACH),
    Scenario("frozen-member", f"a member's only replica is frozen for {FROZEN_S:.0f} s", _freeze_a_member),
    Scenario("frozen-nodes", "the only transformer, combiner and labeler are frozen", _lose_replicas(FREEZE, *SMALL)),
    Scenario(
        "frozen-ingress",
        "one of two replicas of the ingress is frozen",
        _lose_replicas(FREEZE, "Ingress"),
        {"Ingress": 2},
    ),
    Scenario("frozen-haproxy", "HAProxy is frozen", _lose(FREEZE, "haproxy")),
    Scenario("ingress", "one of two replicas of the ingress is killed, three times", _kill_ingress, {"Ingress": 2}),
    Scenario(
        "node-of-three", "one of three machines is lost, and a replica of each node", Stage.kill_a_node, THREE, nodes=3
    ),
    Scenario("controller", "Serve's controller is killed", _lose(KILL, "ray::ServeController")),
    Scenario("haproxy", "HAProxy is killed", _lose(KILL, "haproxy")),
    Scenario("rollout", "every node is rolled out anew, with one replica each", _roll(*NODES)),
    Scenario("rollout-of-two", "every node is rolled out anew, with two replicas each", _roll(*NODES), TWO_OF_EACH),
    Scenario("rollout-colocated", "the one process of all nodes is rolled out anew", _roll("Ingress"), {}, "colocated"),
    Scenario("scale-down", "every node goes from two replicas to one", _scale_down, TWO_OF_EACH),
    Scenario("scan-bombs", f"{BOMBS} JPEGs of 49 megapixels in 1,010 scans are sent", _send_scan_bombs),
    Scenario("slow-bodies", f"{SLOW_BODIES} clients send bodies at 10 bytes a second", _attack(send_slow_bodies)),
    Scenario(
        "stalled-bodies",
        f"{SLOW_BODIES} clients send {BEGINNING_BYTES / 1024:.0f} KB, then 10 bytes a second",
        _attack(send_stalled_bodies),
    ),
    Scenario("brackets", f"{BRACKET_SENDERS} clients send 31 MB of brackets again and again", _attack(send_brackets)),
)
