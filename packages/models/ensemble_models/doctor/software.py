"""Checks of installed packages, and of a configuration and its models."""

import asyncio
import shlex
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from ensemble_models.doctor import Finding
from ensemble_models.doctor.machine import threads
from scripts.configuration import check, doubts, replicas_of
from scripts.errors import ScriptError
from scripts.serve import haproxy as front
from scripts.shipped import hidden, shipped
from scripts.variants import choices

DISTRIBUTION = "ensemble-serving"
# Images whose time does not count, and images whose time does.
WARM_UP, MEASURED = 3, 10


def problem(found: object) -> Finding:
    """Report what a configuration can't be served with."""
    return Finding("wrong", f"configuration: {found}", "correct what it names (docs/reference/configuration.md)")


def installed(required: list[str] | None = None) -> Finding:
    """Check that the versions that this project needs are installed."""
    try:
        found = required if required is not None else metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return Finding("look", "versions: this project is not installed", "make serve, or pip install -e .")
    wrong = {}
    for requirement in map(Requirement, found):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong[str(requirement)] = f"{requirement.name} is missing"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong[str(requirement)] = f"{requirement.name} {version} is not {requirement.specifier}"
    if wrong:
        return Finding("wrong", f"versions: {', '.join(wrong.values())}", f"pip install {shlex.join(wrong)}")
    return Finding("ok", f"versions: Ray {metadata.version('ray')}, OpenVINO {metadata.version('openvino')}; all fit")


def folder(path: str) -> Finding:
    """Check that no code in a folder hides this project's packages from commands for which the folder comes first."""
    if found := hidden([path]):
        return Finding(
            "look",
            f"folder: {', '.join(found.values())} would be imported in place of this project's code by `serve run` and "
            "`python -m`, for which the working directory comes first",
            "use `ensemble serve`, for which it comes last; or rename it",
        )
    return Finding("ok", f"folder: nothing in {path} hides this project's packages")


def haproxy() -> Finding:
    """Check the HAProxy in front."""
    try:
        program = front.program()
        printed = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (ScriptError, OSError, subprocess.SubprocessError) as err:
        remedy = "pip install 'ray[serve]', or args: {front: serve} for Serve's own proxy"
        return Finding("wrong", f"HAProxy can't be run: {err}", remedy)
    return Finding("ok", f"HAProxy: {' '.join(printed.split()[:3])}, {program}")


def application(given: Mapping[str, Any], serve: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that an application of a Serve config can be built, and what does nothing in it.

    And the time of one image through each of the application's nodes, in this process.
    """
    from graph.composition import ensemble
    from graph.placement import node_specs

    try:
        config, agreed = check(given, serve)
        yield threads(config, replicas_of(given, config))
        yield Finding("ok", f"models: {', '.join(m.name for m in config.members)}, {len(agreed.labels)} classes agreed")
        nodes = {name: spec.make() for name, spec in node_specs(config, agreed).items()}
    except ConfigurationError as err:
        yield problem(err)
        return
    yield from (Finding("ok", f"models: {line}") for line in choices(config))
    for doubt in doubts(config, agreed):
        what, _, remedy = doubt.rpartition("; ")
        yield Finding("look", f"models: {what}", remedy)
    graph = ensemble(agreed.pixels, config.ensemble, nodes)
    image = shipped("tests/cat.jpg").read_bytes()

    async def measure() -> list[Batch[Any]]:
        return [await graph(Batch([image], (Item(),))) for _ in range(WARM_UP + MEASURED)]

    items = [batch.items[0] for batch in asyncio.run(measure())][WARM_UP:]
    for error in {item.error.message for item in items if item.error is not None}:
        yield Finding("wrong", f"one image through the graph: {error}", "see the members that it names")
        return
    times: dict[str, list[float]] = {}
    for step in (step for item in items for step in item.steps):
        times.setdefault(step.note.node, []).append((step.note.end_ns - step.note.start_ns) / 1e6)
    for name in sorted({name for item in items for name in item.missing}):
        yield Finding("wrong", f"member {name} does not answer", "look at its server, or at its model")
    for node, measured in times.items():
        yield Finding("ok", f"one image, {node}: {statistics.median(measured):.2f} ms")
