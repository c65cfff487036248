"""The price of a million calls on a document's machines, at its traffic, and at the rates measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ensemble_capacity.cost import HOURS_A_YEAR, INSTANCES, MILLION, TRAFFIC, Instance
from lab.experiments.experiment import Here, declared
from lab.experiments.ladder import EXIT_AT, LADDER
from lab.reported import of
from lab.rows import Part, Row, Rows

FULL, BUSY = 0.7, (0.7, 0.07)
# Steps of the experiment `ladder`, and what is served there.
SETUPS = {
    "direct edges": "both, float32, a process per node",
    "int8": "both, int8, a process per node",
    "its own front instead of Serve's HAProxy": "both, int8, one process",
    f"a cascade that ends at {EXIT_AT:g}": "a cascade, int8, one process",
    "the student alone": "the student, int8, one process",
}
LAMBDA = "calls per month up to which Lambda is cheaper than EC2 with Elastic Inference"
MACHINES = ("the CPU machine", "the machine with an accelerator", "the GPU machine")


def rows() -> Rows:
    """Compute the document's machines at its traffic, and steps of the experiment `ladder` at shares of their rates."""
    found = [_row(each, TRAFFIC, "reported machines, at 26 pictures a minute") for each in INSTANCES]
    measured = LADDER.stored()
    for row in () if measured is None else LADDER.summary(measured.rows):
        if (name := SETUPS.get(row["step"])) and "error" not in row:
            # The machine here has no price of its own: the reported CPU machine's is taken.
            here = Instance(name, INSTANCES[0].dollars_per_hour, row["requests_per_s"])
            found += [_row(here, busy * row["requests_per_s"], f"here, {busy:.0%} busy") for busy in BUSY]
    return found


def _row(instance: Instance, traffic: float, where: str) -> Row:
    cost = asdict(instance.cost(traffic, FULL))
    return {"where": where, "traffic": traffic, **cost.pop("instance"), **cost}


def compare(rows: Rows) -> Mapping[str, Here]:
    """Check the reported sums by arithmetic."""
    cpu, small, gpu = (row["per_million"] for row in rows[: len(INSTANCES)])
    told = {each.subject: each.value or 0.0 for each in of("cost")}
    year = told["price of a GPU machine"] * HOURS_A_YEAR * told["GPUs in each of two countries"] * 2
    per_call = rows[1]["per_month"] / told[LAMBDA] * MILLION
    by_machine = zip(MACHINES, (cpu, small, gpu), strict=True)
    return {
        **{name: Here(cost, f"${cost:,.0f} per million calls at that traffic") for name, cost in by_machine},
        "traffic of each machine": Here(TRAFFIC, f"{TRAFFIC:.2f} requests/s: each idles for 97 to 99 % of the time"),
        "speed gain of the accelerator over the CPU machine": Here(
            28.0, "the reported figure, so the CPU machine takes 76 ms"
        ),
        "saving of the accelerator against the CPU machine": Here(small / cpu, f"{100 * (1 - small / cpu):.0f} %"),
        "price of the GPU machine, in prices of the accelerator machine": Here(gpu / small, f"{gpu / small:.1f} times"),
        LAMBDA: Here(per_call, f"so a call of Lambda would cost as much as ${per_call:.2f} per million"),
        "saved in a year, about": Here(year, f"${year:,.0f} = 1.306 x 24 x 365 x 15 x 2"),
    }


COST = declared(
    "cost",
    parts=lambda _: [Part("all", rows)],
    ours=lambda row: "here" in row["where"],
    compare=compare,
)
