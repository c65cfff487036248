"""Checks of installed packages, and of a configuration and its models."""

from __future__ import annotations

import asyncio
import shlex
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from deployments.members.openvino import OpenVino
from deployments.repository.errors import ModelError
from deployments.repository.repository import Folder, Model
from ensemble_models.costs import Cost, costs, precision
from ensemble_models.doctor import Finding
from ensemble_models.doctor.machine import threads
from graph.config import EnsembleConfig
from scripts.configuration import check, doubts, replicas_of
from scripts.errors import ScriptError
from scripts.serve import haproxy as front
from scripts.shipped import hidden, shipped
from scripts.variants import choices


def versions(config: EnsembleConfig) -> Iterator[Finding]:
    """Measure the served version of each member, and the highest of each other precision, in turns."""
    for member in config.members:
        if not isinstance(member, OpenVino):
            continue
        try:
            models = _candidates(member, config)
            if len(models) > 1:
                yield compare(member.name, models, costs(models))
        except (ModelError, ScriptError) as err:
            yield Finding("look", f"member {member.name}: {err}", "restore this version, or delete its folder")


def compare(name: str, models: Sequence[Model], measured: Sequence[Cost]) -> Finding:
    """Compare a member's served version, the first one, with the others.

    A float version that takes less time than a served int8 one is better in every respect, because int8 loses accuracy.
    """
    shown = [f"version {each.version} ({precision(each)}) {cost}" for each, cost in zip(models, measured, strict=True)]
    what = f"member {name}: {shown[0]}; {'; '.join(shown[1:])}"
    best = min(range(len(models)), key=lambda row: measured[row].median)
    if precision(models[0]) == "INT8" and measured[best].high < measured[0].low:
        return Finding("look", what, f"version {models[best].version} suits this CPU: set `version` of the member")
    return Finding("ok", what)


def _candidates(member: OpenVino, config: EnsembleConfig) -> list[Model]:
    """Find the served version, then the highest one of each other precision; only prepared ones on this disk."""
    repository, name = member.repository_and_name(config.model_repository)
    served = member.find(config.model_repository)
    if not isinstance(repository, Folder) or not served.metadata:
        return [served]
    every = [repository.find(name, version) for version in repository.versions(name)]
    found = {precision(each): each for each in every if each.metadata} | {precision(served): served}
    return [served, *(each for each in found.values() if each is not served)]


DISTRIBUTION = "ensemble-serving"
CORRECT = "correct what it names; docs/configuration.md has every field"
# Images whose time does not count, and images whose time does.
WARM_UP, MEASURED = 3, 10


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
        yield Finding("wrong", f"configuration: {err}", CORRECT)
        return
    yield from (Finding("ok", f"models: {line}") for line in choices(config))
    for doubt in doubts(config, agreed):
        what, _, remedy = doubt.rpartition("; ")
        yield Finding("look", f"models: {what}", remedy)
    yield from versions(config)
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
