"""Ray's agent of a machine, which exports metrics, with the counters of the machine instead of each process.

    python -P -m deployments.ray_internals.agent ARGUMENT ...

The agent adds up what processes report. Ray's own has series for each process, and they stay when the process has
ended: every replica that is replaced would make each scrape longer. Of a tag of this project's counters the agent keeps
the first values, because each process has others: a thousand classes would have series after some replicas.
"""

import runpy
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deployments.contract.names import MOST_VALUES, OTHER
from deployments.ray_internals.compatibility import AGENT

# The labels that say which process reported, which replica it was, and by which of its handles.
OF_A_PROCESS = {"WorkerId", "actor_id", "handle", "replica"}
# What the names of this project's metrics begin with.
OURS = "ensemble_"


def script() -> Path:
    """Return the path of Ray's agent."""
    [folder] = find_spec("ray").submodule_search_locations or []  # type: ignore[union-attr]
    return Path(folder) / "dashboard" / "agent.py"


def bounded(known: set[str], value: str) -> str:
    """Return a tag's value, or `other` for a new one where as many are known as a process may have."""
    if len(known) < MOST_VALUES:
        known.add(value)
    return value if value in known else OTHER


def make_recorder(original: Any) -> Any:
    """Make a class of Ray's recorder of metrics that adds up the processes of this machine.

    A gauge stays a process' own: gauges can't be added up, and Ray forgets one that is not set again.
    """

    class Recorder(original):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._gauges: set[str] = set()
            self._known: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

        def register_gauge_metric(self, name: str, description: str) -> None:
            self._gauges.add(name)
            super().register_gauge_metric(name, description)

        def set_metric_value(self, name: str, tags: dict[str, str], value: float) -> None:
            super().set_metric_value(name, tags if name in self._gauges else self._of_machine(name, tags), value)

        def record_histogram_aggregated_batch(self, name: str, data_points: list[dict[str, Any]]) -> None:
            merged = [{**point, "tags": self._of_machine(name, point["tags"])} for point in data_points]
            super().record_histogram_aggregated_batch(name, merged)

        def _of_machine(self, name: str, tags: Mapping[str, str]) -> dict[str, str]:
            kept = {tag: value for tag, value in tags.items() if tag not in OF_A_PROCESS}
            if not name.startswith(OURS):
                return kept
            return {tag: bounded(self._known[name, tag], value) for tag, value in kept.items()}

    return Recorder


def main() -> None:
    """Become Ray's agent."""
    if AGENT.problem() is None:
        agent: Any = import_module("ray.dashboard.modules.reporter.reporter_agent")
        agent.OpenTelemetryMetricRecorder = make_recorder(agent.OpenTelemetryMetricRecorder)
    runpy.run_path(str(script()), run_name="__main__")


if __name__ == "__main__":
    main()
