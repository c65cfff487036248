"""Injects faults into running servers under load, and reports what their clients saw.

    ensemble faults                          # every scenario
    ensemble faults members haproxy --markdown faults.md
    ensemble faults fuzz --help              # hostile and costly input, which has options of its own
    ensemble faults refusals --help          # more requests than a server can answer, likewise
    ensemble faults kills --help             # processes killed at any moment of a start, a load, a stop
    ensemble faults history --help           # whether each answer was possible while faults were done

Each scenario starts a server of its own, of the shipped configuration with the bundled models. Clients never retry a
request. It prints the requests that failed, the answers that lacked a member, the rate of answers during the fault as a
fraction of the rate before, and the longest time without an answer. A server starts in half a minute; all scenarios
take about a quarter of an hour. The exit status is 1 if a scenario could not be done, or failed every request.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

import psutil
from PIL import Image

from ensemble_models.options import POSITIVE
from ensemble_serving.transports import NoResponse, Request, once
from lab.benchmark.systems import HTTP_PORT
from lab.benchmark.workloads import Placement, workload
from lab.faults.campaign import Campaign, Done
from lab.faults.stage import CALM_S, RESERVED_CPUS, Stage, part_of, sight, stage
from lab.rows import Row, Rows
from scripts.errors import ScriptError
from scripts.serve.api import ServeApi
from scripts.serve.haproxy import BEGINNING_BYTES

NODES = ("JpegTransformer", "ResNet", "DenseNet", "Combiner", "Labeler")
TWO_OF_EACH, THREE = dict.fromkeys(NODES, 2), dict.fromkeys(NODES, 3)
FROZEN_S = 15.0
BOMBS = 8
CLIENTS = 16
ATTACK_S = 20.0
SLOW_BODIES, BRACKET_SENDERS = 600, 4
HEAD = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"


@dataclass(frozen=True)
class Scenario(Done):
    """A fault; see `Done`.

    Attributes:
        do: does it.
        replicas: how many each deployment has, where that is not one.
        placement: where the nodes run.
        nodes: of Ray, all on this machine.
    """

    do: Callable[[Stage], None]
    replicas: Mapping[str, int] = field(default_factory=dict)
    placement: Placement = "separate"
    nodes: int = 1


KILL, FREEZE = psutil.Process.kill, psutil.Process.suspend


def lose_replicas(by: Callable[[psutil.Process], None], *deployments: str) -> Callable[[Stage], None]:
    """Kill or freeze a replica of each deployment, one after the other."""

    def do(here: Stage) -> None:
        for deployment in deployments:
            here.lose_a_replica(deployment, by)

    return do


SMALL = ("JpegTransformer", "Combiner", "Labeler")
_kill_members = lose_replicas(KILL, "ResNet", "DenseNet", "ResNet")
_kill_nodes = lose_replicas(KILL, *SMALL)
_kill_ingress = lose_replicas(KILL, "Ingress", "Ingress", "Ingress")


def _freeze_a_member(here: Stage) -> None:
    [frozen] = here.replicas("ResNet")
    frozen.suspend()
    time.sleep(FROZEN_S)
    if frozen.is_running():
        frozen.resume()
    here.until_whole()


def lose(by: Callable[[psutil.Process], None], part: str) -> Callable[[Stage], None]:
    """Kill or freeze every process of a part, and wait until others have replaced them."""

    def do(here: Stage) -> None:
        before = here.processes(part)
        with here.told.gone(part):
            for process in before:
                by(process)
            here.until(lambda: bool(set(here.processes(part)) - set(before)))
            here.until_whole()

    return do


def deploy(here: Stage, names: Sequence[str], **changed: Any) -> None:
    """Deploy changed options of some deployments."""
    for options in here.config["applications"][0]["deployments"]:
        if options["name"] in names:
            options.update(changed)
    ServeApi(here.dashboard).deploy(here.config)


def roll(*names: str) -> Callable[[Stage], None]:
    """Replace every replica of some deployments, and wait until the new ones answer."""

    def do(here: Stage) -> None:
        before = {name: here.replicas(name) for name in names}
        options = next(each for each in here.config["applications"][0]["deployments"] if each["name"] in names)
        # Another reservation than before: nothing else depends on it.
        other = 0.04 if options["ray_actor_options"]["num_cpus"] == RESERVED_CPUS else RESERVED_CPUS
        with here.told.gone(*map(part_of, names)):
            deploy(here, names, ray_actor_options={"num_cpus": other})
            here.until(lambda: all(not set(old) & set(here.replicas(name)) for name, old in before.items()))
            here.until_whole()

    return do


def scale(*counts: int) -> Callable[[Stage], None]:
    """Give every node each of these numbers of replicas, one after the other."""

    def have(here: Stage, count: int) -> bool:
        return all(len(here.replicas(name)) == count for name in NODES)

    def do(here: Stage) -> None:
        for count in counts:
            with here.told.gone(*map(part_of, NODES)):
                deploy(here, NODES, num_replicas=count)
                here.until(partial(have, here, count))
                here.until_whole()

    return do


def _send_scan_bombs(here: Stage) -> None:
    out = BytesIO()
    Image.new("RGB", (7000, 7000)).save(out, "JPEG", progressive=True)
    whole = out.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    bomb = whole[:-2] + last * 1000 + whole[-2:]
    for _ in range(BOMBS):
        once(here.url, Request("/classify", bomb), timeout_s=120)
    here.until_whole()


def attack(by: Callable[[], None]) -> None:
    """Let a function of this module attack, until it ends.

    Raises ScriptError if it failed, so that nothing can be told of the attack.
    """
    process = multiprocessing.get_context("spawn").Process(target=by, name="attackers")
    process.start()
    process.join()
    if process.exitcode != 0:
        raise ScriptError(f"the attackers ended with {process.exitcode}, before their attack was over")


def send_slow_bodies(beginning: int = 0) -> None:
    """Send bodies over many connections, at ten bytes per second each; replace a connection that is ended.

    So many bytes of each body are sent at once.
    """
    slow: list[socket.socket] = []
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        for _ in range(SLOW_BODIES - len(slow)):
            # What is refused at once comes again in a second.
            with suppress(ConnectionError):
                slow.append(socket.create_connection(("127.0.0.1", HTTP_PORT)))
                slow[-1].sendall(HEAD + bytes(beginning))
        time.sleep(1)
        slow = [each for each in slow if _trickle(each)]
    for each in slow:
        each.close()


def send_stalled_bodies() -> None:
    """Send slow bodies that begin with as many bytes as let them pass HAProxy."""
    send_slow_bodies(BEGINNING_BYTES + 100)


def _trickle(connection: socket.socket) -> bool:
    """Send ten bytes more; False if the server has ended the connection, or answered."""
    try:
        connection.sendall(b"0123456789")
        connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


def send_brackets() -> None:
    """Let a few clients send 31 MB of JSON brackets again and again."""
    body = b'{"inputs": [' + b"[]," * 10_400_000 + b"[]]}"
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            # Refused before it is read, the connection may end while it is still being sent.
            with suppress(NoResponse):
                once(f"http://127.0.0.1:{HTTP_PORT}", Request("/v2/models/ensemble/infer", body), timeout_s=120)

    with ThreadPoolExecutor(BRACKET_SENDERS) as pool:
        senders = [pool.submit(send) for _ in range(BRACKET_SENDERS)]
        time.sleep(ATTACK_S)
        over.set()
    for sender in senders:
        sender.result()


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
    Scenario("frozen-nodes", "the only transformer, combiner and labeler are frozen", lose_replicas(FREEZE, *SMALL)),
    Scenario(
        "frozen-ingress",
        "one of two replicas of the ingress is frozen",
        lose_replicas(FREEZE, "Ingress"),
        {"Ingress": 2},
    ),
    Scenario("frozen-haproxy", "HAProxy is frozen", lose(FREEZE, "haproxy")),
    Scenario("ingress", "one of two replicas of the ingress is killed, three times", _kill_ingress, {"Ingress": 2}),
    Scenario(
        "node-of-three", "one of three machines is lost, and a replica of each node", Stage.kill_a_node, THREE, nodes=3
    ),
    Scenario("controller", "Serve's controller is killed", lose(KILL, "ray::ServeController")),
    Scenario("haproxy", "HAProxy is killed", lose(KILL, "haproxy")),
    Scenario("rollout", "every node is rolled out anew, with one replica each", roll(*NODES)),
    Scenario("rollout-of-two", "every node is rolled out anew, with two replicas each", roll(*NODES), TWO_OF_EACH),
    Scenario("rollout-colocated", "the one process of all nodes is rolled out anew", roll("Ingress"), {}, "colocated"),
    Scenario("scale-down", "every node goes from two replicas to one", scale(1), TWO_OF_EACH),
    Scenario("scan-bombs", f"{BOMBS} JPEGs of 49 megapixels in 1,010 scans are sent", _send_scan_bombs),
    Scenario("slow-bodies", f"{SLOW_BODIES} clients send bodies at 10 bytes a second", _attack(send_slow_bodies)),
    Scenario(
        "stalled-bodies",
        f"{SLOW_BODIES} clients send {BEGINNING_BYTES / 1024:.0f} KB, then 10 bytes a second",
        _attack(send_stalled_bodies),
    ),
    Scenario("brackets", f"{BRACKET_SENDERS} clients send 31 MB of brackets again and again", _attack(send_brackets)),
)


def measure(scenario: Scenario, clients: int) -> Rows:
    """Measure what clients see of a scenario.

    Raises ScriptError if the server did not start, or was not whole again in time.
    """
    with stage(workload("embedded", "int8"), scenario.placement, scenario.replicas, clients, scenario.nodes) as here:
        began = time.perf_counter()
        scenario.do(here)
        ended = time.perf_counter() - CALM_S
    seen = here.clients
    return [sight(seen.records(), seen.began, began, ended, seen.first_error)]


def note(row: Row) -> str:
    """Tell the first failure of a scenario."""
    return f"{row['scenario']}: the first failure was {row['first_failure']}" if row["first_failure"] else ""


FAULTS = Campaign(
    name="",
    help=__doc__,
    measure=measure,
    flags={"--clients": {"type": POSITIVE, "default": CLIENTS, "show_default": True, "help": "Clients at a time."}},
    kind="scenario",
    faults=SCENARIOS,
    columns="what is done {what} | requests {requests:,} | failed {failed:,} | degraded {degraded:,} | "
    "rate kept {kept:.2f} | outage, s {dark_s:.1f} | p99, ms {p99_ms:,.0f}",
    failed=lambda row: bool(row["failed"] == row["requests"]),
    note=note,
)
