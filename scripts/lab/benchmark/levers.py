"""What each lever gives: this application with one thing changed, against the same as it comes, side by side.

    ensemble levers --markdown levers.md

A default runs before and after every two changed ones; a ratio is requests/s against the mean of its neighbours. What
a server need not be started for (decoding, serialization, FastAPI) is timed in this process: see `micro.py`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described
from scripts.lab.benchmark.micro import Result, in_process
from scripts.lab.benchmark.systems import OURS, Running, running
from scripts.lab.benchmark.workloads import Placement, workload
from scripts.results import Table, add_files, check_files, write_files

HEADINGS = ("lever, against the default", "workload", "placement", "clients", "requests/s", "ratio")

Edit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Lever:
    """One change of the default: of its configuration, of the environment, or of the processes once they run."""

    name: str
    edit: Edit | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    after: Callable[[Running], None] | None = None


DEFAULT = Lever("default")


def args(**changes: Mapping[str, Any]) -> Edit:
    """Change fields of the application's arguments; under `members`, of every member."""

    def edit(config: dict[str, Any]) -> None:
        own = config["applications"][0]["args"]
        for name, fields in changes.items():
            for target in own["members"] if name == "members" else [own.setdefault(name, {})]:
                target.update(fields)

    return edit


def inline(*nodes: str) -> Edit:
    """Place light nodes in the ingress."""

    def edit(config: dict[str, Any]) -> None:
        args(**{node: {"placement": "inline"} for node in nodes})(config)
        application = config["applications"][0]
        gone = {"JpegTransformer", "Combiner", "Labeler"}
        application["deployments"] = [d for d in application["deployments"] if d["name"] not in gone]

    return edit


def replicas(count: int) -> Edit:
    """So many copies of the whole graph, the threads split among them."""

    def edit(config: dict[str, Any]) -> None:
        args(members={"threads": 1})(config)
        [ingress] = config["applications"][0]["deployments"]
        ingress.update(num_replicas=count, ray_actor_options={"num_cpus": 0.5})

    return edit


def serves_proxy(config: dict[str, Any]) -> None:
    """Have Serve's own proxy take the requests."""
    config["applications"][0]["args"]["front"] = "serve"


def access_log(config: dict[str, Any]) -> None:
    """Turn Serve's access log on."""
    config["logging_config"]["enable_access_log"] = True


def pin(server: Running) -> None:
    """Each member's replica on a core of its own."""
    for core, deployment in enumerate(("ResNet", "DenseNet")):
        for process in server.replicas(deployment):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {core})


ONE_BY_ONE = args(ingress={"max_batch_size": 1, "max_concurrent_batches": 32})
# (workload, placement, clients): the levers tried there.
TRIED: dict[tuple[str, Placement, int], list[Lever]] = {
    ("trivial", "separate", 32): [
        Lever("no batching at the ingress", ONE_BY_ONE),
        Lever("transformer, combiner, labeler inline", inline("transformer", "combiner", "labeler")),
        Lever("Serve's proxy in front", serves_proxy),
        Lever("Serve's proxy, and no throughput mode", serves_proxy, {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"}),
        Lever("calls by reference, not by value", environment={"RAY_SERVE_USE_GRPC_BY_DEFAULT": "0"}),
        Lever("access log on", access_log),
        Lever("garbage collector not frozen", environment={"RAY_SERVE_FREEZE_GC_ON_STARTUP": "0"}),
        Lever("four passes at a time, not two", args(ingress={"max_concurrent_batches": 4})),
    ],
    ("embedded", "colocated", 32): [
        Lever("no batching at the ingress", ONE_BY_ONE),
        Lever("traces of every request, to a file", environment={"OTEL_TRACES_EXPORTER": "file"}),
    ],
    ("embedded", "separate", 32): [
        Lever("traces of every request, to a file", environment={"OTEL_TRACES_EXPORTER": "file"}),
        Lever("two threads a member, not one", args(members={"threads": 2})),
    ],
    ("imagenet", "colocated", 8): [
        Lever("one stream a member", args(members={"streams": 1})),
        Lever("LATENCY hint, so one request", args(members={"performance_hint": "LATENCY"})),
        Lever("OpenVINO's own pinning", args(members={"cpu_pinning": True})),
        Lever("two replicas of one thread a member", replicas(2)),
    ],
    ("imagenet", "separate", 8): [
        Lever("members pinned to a core each", after=pin),
        Lever("two threads a member, not one", args(members={"threads": 2})),
    ],
}


def measure(name: str, placement: Placement, clients: int, levers: Sequence[Lever], seconds: float) -> list[Result]:
    """The levers of one workload and placement, defaults between them."""
    load = workload(name, "int8")

    def rate(lever: Lever) -> float:
        with running(OURS[placement], load, lever.edit, lever.environment) as server:
            if lever.after is not None:
                lever.after(server)
            return float(server.load(load, "http", clients, seconds)["requests_per_s"])

    results = []
    before = rate(DEFAULT)
    for first in range(0, len(levers), 2):
        pair = levers[first : first + 2]
        rates = [rate(lever) for lever in pair]
        after = rate(DEFAULT)
        around = (before + after) / 2
        results += [
            Result(lever.name, name, placement, clients, value, value / around)
            for lever, value in zip(pair, rates, strict=True)
        ]
        before = after
    return results


def main() -> None:
    """Parse the command line and try every lever."""
    parser = described(__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--only", help="levers whose workload and placement hold this text, as 'imagenet colocated'")
    add_files(parser, "json", "markdown")
    options = parser.parse_args()
    check_files(parser, options)
    with errors_in_one_line():
        chosen = {key: levers for key, levers in TRIED.items() if (options.only or "") in f"{key[0]} {key[1]}"}
        if not chosen:
            names = sorted({f"{name} {placement}" for name, placement, _ in TRIED})
            raise ScriptError(f"--only {options.only!r} is in none of {', '.join(names)}")
        results = [] if options.only else in_process()
        try:
            for (name, placement, clients), levers in tqdm(chosen.items(), "levers", unit="group"):
                results += measure(name, placement, clients, levers, options.seconds)
        finally:
            # Of what ends early, what was measured.
            if results:
                report(results, options)


def report(results: list[Result], options: argparse.Namespace) -> None:
    """Print the results, and write the files that were asked for."""
    table = Table(HEADINGS, [result.cells for result in results], words=range(3))
    table.show()
    write_files(options, table, [vars(result) for result in results])


if __name__ == "__main__":
    main()
