"""The page on the metrics that the code registers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lab.reference.markdown import code, table
from scripts.shipped import CHECKOUT

FOLDERS = ("deployments", "graph", "packages/plugins")
# By the class of a metric, its type at Prometheus.
KINDS = {"TaggedCounter": "counter", "Counter": "counter", "TaggedGauge": "gauge", "TaggedHistogram": "histogram"}
COUNTED = "_total"
INTRODUCTION = """# Metrics

[Observability](../observability.md#metrics) has the addresses, dashboards and alerts. Every metric has the labels
`application` and `deployment`, a gauge also `replica`; the table has further labels. A counter grows from the start of
its process, so query its `rate`.
"""


@dataclass(frozen=True, order=True)
class Metric:
    """A metric, by its name at Prometheus without Ray's prefix `ray_`, with its own labels."""

    name: str
    kind: str
    labels: tuple[str, ...]
    description: str


def page() -> str:
    """Write the page: a row for each metric, by name."""
    rows = [
        (code(f"ray_{each.name}"), each.kind, ", ".join(map(code, each.labels)), each.description)
        for each in registered()
    ]
    return "\n".join([INTRODUCTION, table(("metric", "type", "labels", "what it counts"), rows)])


def registered() -> list[Metric]:
    """Find the metrics in the source, because a feature registers its own ones only when it is on."""
    files = (file for folder in FOLDERS for file in (CHECKOUT / folder).rglob("*.py"))
    calls = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return sorted({metric for call in calls if isinstance(call, ast.Call) for metric in _registered_by(call)})


def _registered_by(call: ast.Call) -> Iterator[Metric]:
    kind = KINDS.get(getattr(call.func, "id", ""), "")
    described = (keyword.value for keyword in call.keywords if keyword.arg == "description")
    name, description, *labels = *_texts([*call.args[:1], *described, *call.args[1:]]), "", ""
    if kind and name.startswith("ensemble_"):
        yield Metric(name + COUNTED * (kind == "counter"), kind, tuple(filter(None, labels)), description)


def _texts(expressions: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the texts among the arguments of a call."""
    for each in expressions:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple):
            yield from _texts(each.value.elts)
