"""Makes an experiment of docs/experiments here: what five documents reported, beside what this machine does.

    ensemble experiments batches               # one of them; writes its result, tables and picture in docs/experiments
    ensemble experiments all --seconds 2       # all of these that this commit has not been measured by on this machine
    ensemble experiments pages                 # writes tables and pictures anew from the stored results
    ensemble experiments cascade --help        # as autoscaling, cost, distillation, overload

What is missing for any of them is named before the first one starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from lab.experiments import (
    arrivals,
    autoscaling,
    baseline,
    batches,
    cascade,
    cost,
    distillation,
    hops,
    ladder,
    overload,
    payloads,
    precision,
    scaling,
    threads,
)
from lab.experiments.experiment import Experiment
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described
from scripts.serve.environment import set_up

MEASURED = (
    payloads.PAYLOADS,
    batches.BATCHES,
    arrivals.ARRIVALS,
    ladder.LADDER,
    baseline.BASELINE,
    threads.THREADS,
    scaling.SCALING,
    hops.HOPS,
    precision.PRECISION,
)
EXPERIMENTS = {each.name: each for each in MEASURED}
# Those whose pages are drawn from what is stored.
DRAWN = (*MEASURED, distillation.DISTILLATION)
WITH_OPTIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "autoscaling": autoscaling.main,
    "cascade": cascade.main,
    "cost": cost.main,
    "distillation": distillation.main,
    "overload": overload.main,
}


def check(chosen: Sequence[Experiment]) -> None:
    """Raise ScriptError, before anything starts, for all that is missing."""
    missing = []
    for each in chosen:
        try:
            each.check()
        except ScriptError as err:
            missing.append(f"{each.name}: {err}")
    if missing:
        raise ScriptError("; ".join(missing))


def draw(experiments: Sequence[Experiment]) -> None:
    """Write the pages and pictures of those that have a result, and name the others at the end."""
    lacking = [each.name for each in experiments if each.stored() is None]
    for each in experiments:
        if each.name not in lacking:
            each.draw()
    if lacking:
        print(f"not measured yet, so nothing was drawn: {', '.join(lacking)}")


def main() -> None:
    """Make the experiment that is named."""
    if alone := WITH_OPTIONS.get("".join(sys.argv[1:2])):
        alone(sys.argv[2:])
        return
    parser = described(__doc__)
    parser.add_argument("experiment", choices=sorted([*EXPERIMENTS, *WITH_OPTIONS, "all", "pages"]))
    parser.add_argument("--seconds", type=float, help="of each load; default: as long as its page says")
    parser.add_argument("--again", action="store_true", help="also what this commit has measured on this machine")
    args = parser.parse_args()
    if args.seconds is not None and args.seconds <= 0:
        parser.error("--seconds must be above 0")
    chosen = [each for name, each in EXPERIMENTS.items() if args.experiment in {name, "all", "pages"}]
    with errors_in_one_line():
        if args.experiment == "pages":
            draw(DRAWN)
            return
        check(chosen)
        set_up()
        for each in chosen:
            print(f"{each.name} is there" if not each.run(args.seconds, again=args.again) else f"made {each.name}")


if __name__ == "__main__":
    main()
