"""What each picture shows: figures of the documentation's tables, and of the files in docs/benchmarks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lab.pictures.chart import Bar, Chart
from scripts.shipped import CHECKOUT

DOCS = CHECKOUT / "docs"
EPYC = "two virtual CPUs of an AMD EPYC"
MACHINE = f"{EPYC} (Zen 4)"
SYSTEMS = {
    ("limit", None): "the models alone, unserved",
    ("ours", "colocated"): "this application, one process",
    ("ours", "separate"): "this application, a process per node",
    ("triton", None): "Triton's ensemble, a process per node",
    ("triton-callable", None): "Triton, one callable",
    ("mlserver", None): "MLServer",
    ("fastapi", None): "FastAPI",
    ("litserve", None): "LitServe",
}


def charts() -> dict[str, Chart]:
    """Return every chart by the name of its file in docs/images."""
    return {
        "embedded": _requests("embedded", f"HTTP, int8, images of 15 KB; {MACHINE}, 2026-11-25"),
        "imagenet": _requests("imagenet", f"HTTP, ResNet-50 and DenseNet-169, 224x224; {MACHINE}, 2026-11-26"),
        "faults": _faults(),
        "accuracy": _accuracy(),
    }


def table(page: str, heading: str) -> list[list[str]]:
    """Read the rows of a page's first table whose head begins with this text, without their formatting."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([re.sub(r"\*\*|\\\*", "", cell).strip() for cell in line.strip("|").split(" | ")])
    return rows


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("%", "").strip())


def _rows(name: str) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def _requests(workload: str, note: str) -> Chart:
    rows = [row for row in _rows(workload) if row["protocol"] in {None, "http"}]
    groups = []
    for clients in (8, 32):
        bars = [
            Bar(
                SYSTEMS[row["system"], row["placement"]],
                row["requests_per_s"],
                f"{row['requests_per_s']:.0f}",
                row["system"] == "ours",
            )
            for row in rows
            if row["clients"] == clients
        ]
        groups.append((f"{clients} clients", bars))
    return Chart("Requests per second; more is better", note, groups)


def _faults() -> Chart:
    rows = table("reliability.md", "what is done")
    bars = [Bar(row[0], _number(row[5]), f"{row[5]} s, {row[2]} failed", ours=row[2] == "0") for row in rows]
    note = f"Coloured: no request failed. 16 clients; {EPYC}, November 2026"
    return Chart("The longest time without an answer, seconds; less is better", note, [("", bars)], ascending=True)


def _accuracy() -> Chart:
    bars = []
    for name, version, precision, top1, interval, *_ in table("models.md", "model"):
        low, high = map(_number, interval.split(" to "))
        label = f"{name} {version}, {precision}" if version else f"{name}, {precision}"
        bars.append(Bar(label, _number(top1), top1, name == "ensemble", (low, high)))
    note = "95 % intervals; 5,000 test images of CIFAR-10 that also chose the models, 32x32"
    return Chart("Top-1 accuracy, %; more is better", note, [("", bars)])
