"""Which version of each member takes the least CPU time on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deployments.members.openvino import OpenVino
from deployments.repository.errors import ModelError
from deployments.repository.repository import Folder, Model
from ensemble_models.costs import Cost, costs
from ensemble_models.described import precision
from ensemble_models.doctor import Finding
from graph.config import EnsembleConfig
from scripts.errors import ScriptError


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
