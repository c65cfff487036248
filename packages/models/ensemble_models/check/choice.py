"""Reports which members pay: a table of subsets, sentences, a picture, and the configuration of the choice."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from deployments.combiner import VOTES
from ensemble_models.check.report import figure_file
from ensemble_models.options import Table
from ensemble_models.statistics import Interval, paired
from ensemble_models.subsets import (
    ANY,
    METHODS,
    Expected,
    Limits,
    Panel,
    Subset,
    choose,
    expected,
    front,
    overlap,
    pool,
)
from scripts import configuration
from scripts.errors import ScriptError

HEADINGS = ("members", "top-1, %", "gain, points", "95 % interval", "CPU, ms", "weights, MB", "")
# Of at most so many members every subset is in the table.
SMALL = 3


@dataclass(frozen=True)
class Choice:
    """A choice among the subsets of members.

    Attributes:
        panel: the members' predictions.
        megabytes: of the weights of each member, by name; members on other servers have none.
        limits: what the choice must keep.
    """

    panel: Panel
    megabytes: dict[str, float]
    limits: Limits = ANY

    @cached_property
    def advised(self) -> tuple[Subset, Expected]:
        """The choice by all images, and its worth on others; a single member where these are not expected to gain."""
        worth = expected(self.panel, self.limits)
        methods = METHODS if worth.gain.mean > 0 or self.limits.min_top1 else ()
        chosen = choose(self.panel, limits=self.limits, methods=methods)
        return chosen, worth if methods else expected(self.panel, self.limits, methods)

    @property
    def chosen(self) -> Subset:
        """The choice by all images."""
        return self.advised[0]

    @property
    def served(self) -> Subset:
        """All members together, with the mean and equal weights."""
        return Subset(self.panel.names)

    def gain(self, subset: Subset, over: Subset) -> Interval:
        """Compare two subsets on these images, points of top-1."""
        right = [self.panel.answers(each)[0].astype(np.float64) for each in (subset, over)]
        return Interval.paired(right[0] - right[1])

    def top1(self, subset: Subset) -> float:
        """Compute the top-1 of a subset on these images, percent."""
        return 100 * float(self.panel.answers(subset)[0].mean())

    @cached_property
    def best_member(self) -> Subset:
        """The member with the highest top-1."""
        return max((Subset((name,)) for name in self.panel.names), key=self.top1)

    @cached_property
    def front(self) -> list[Subset]:
        """The subsets that no cheaper one equals."""
        return front(self.panel, list(pool(self.panel)))

    @property
    def shown(self) -> list[Subset]:
        """The subsets of the table: members, the front, the choice, all together; every one of few members."""
        plain = [each for each in pool(self.panel, methods=("mean",)) if not each.fitted]
        few = [each for each in plain if len(each.names) == 1 or len(self.panel.names) <= SMALL]
        return sorted({*few, *self.front, self.chosen, self.served}, key=lambda one: (self.panel.cost(one), str(one)))

    def record(self, subset: Subset) -> dict[str, Any]:
        """Return a line of the table as data."""
        return {
            "members": subset.names,
            "method": subset.method,
            "weights": dict(zip(subset.names, self.panel.weights(subset), strict=True)),
            "top1": self.top1(subset),
            "gain": asdict(self.gain(subset, self.best_member)),
            "cpu_ms": self.panel.cost(subset),
            "weights_mb": sum(self.megabytes.get(name, 0.0) for name in subset.names),
            "is_in_front": subset in self.front,
            "is_chosen": subset == self.chosen,
        }

    def table(self) -> Table:
        """Make the table of subsets, with sentences below it."""
        return Table(HEADINGS, [self._cells(each) for each in self.shown], words=(0, 6), notes=list(self.sentences()))

    def _cells(self, subset: Subset) -> tuple[str, ...]:
        row, gain = self.record(subset), self.gain(subset, self.best_member)
        said = {"all": subset == self.served, "advised": row["is_chosen"], "front": row["is_in_front"]}
        compared = ("", "")
        if subset != self.best_member:
            compared = (f"{gain.mean:+.2f}", f"{gain.low:+.2f} to {gain.high:+.2f}")
        return (
            str(subset),
            f"{row['top1']:.2f}",
            *compared,
            f"{row['cpu_ms']:.2f}",
            f"{row['weights_mb']:.1f}",
            ", ".join(word for word, is_so in said.items() if is_so),
        )

    def sentences(self) -> Iterator[str]:
        """Advise a subset, and describe what each member adds, and how their errors overlap."""
        yield self.advice()
        yield "Intervals in the table do not count that the images also choose; the one above does."
        if len(self.panel.names) > 2:
            yield from map(self._without, self.panel.names)
        yield from overlap(self.panel.members)

    def advice(self) -> str:
        """Advise a subset in a sentence or two, with its expected top-1 and gain on images that chose nothing."""
        worth, images = self.advised[1], len(self.panel.members.labels)
        other = f"{images:,} other images"
        if len(self.chosen.names) == 1:
            return (
                f"Serve {self.chosen} by itself: these images show no ensemble that is better. On {other} its top-1 is "
                f"expected to be {worth.top1.mean:.2f} % ({worth.top1.low:.2f} to {worth.top1.high:.2f})."
            )
        advice = (
            f"Serve {self.chosen}: on {other} its top-1 is expected to be {worth.top1.mean:.2f} % "
            f"({worth.top1.low:.2f} to {worth.top1.high:.2f}), {worth.gain.mean:+.2f} points "
            f"({worth.gain.low:+.2f} to {worth.gain.high:+.2f}) over its best member."
        )
        return advice if images >= worth.enough else f"{advice} {worth.enough:,} images would tell half a point apart."

    def _without(self, name: str) -> str:
        rest = Subset(tuple(each for each in self.panel.names if each != name))
        change, saved = self.gain(rest, self.served), self.panel.members.costs[name] / self.panel.cost(self.served)
        certain = "certain" if change.low > 0 or change.high < 0 else "not certain"
        word = "better" if change.mean > 0 else "worse" if change.mean < 0 else "no difference"
        return f"Without {name}: {change.mean:+.2f} points ({paired(change)}), {saved:.0%} less CPU: {word}, {certain}."

    def plot(self, path: Path) -> None:
        """Draw top-1 over CPU time, with the front, the choice and all members marked; see `figure_file`."""
        with figure_file(path) as figure:
            figure.set_size_inches(7, 4.5)
            axes = figure.subplots()
            drawn = {*self.shown, *(each for each in pool(self.panel, methods=("mean",)) if not each.fitted)}
            axes.plot(*self._points(list(drawn)), "o", color="0.7", markersize=4, label="subset")
            axes.plot(*self._points(self.front), "o-", color="C0", markersize=5, label="front")
            for subset, marker, label in ((self.served, "s", "all members"), (self.chosen, "*", "advised")):
                axes.plot(*self._points([subset]), marker, markersize=13, markerfacecolor="none", label=label)
            for each in {*self.front, self.served, self.chosen}:
                axes.annotate(str(each), (self.panel.cost(each), self.top1(each)), (4, -10), textcoords="offset points")
            axes.set_xlabel("CPU time per image, ms")
            axes.set_ylabel("top-1, %")
            axes.set_title(f"{len(self.panel.members.labels):,} images")
            axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)

    def _points(self, subsets: list[Subset]) -> tuple[list[float], list[float]]:
        return [self.panel.cost(each) for each in subsets], [self.top1(each) for each in subsets]

    def write(self, read: dict[str, Any], file: Path) -> None:
        """Write a configuration file that serves the choice; `read` is the measured configuration, and is changed.

        Raises:
            ScriptError: the file is there.
        """
        for application in configuration.ours(read):
            self._choose_in(application)
        lines = "".join(f"# {line}\n" for line in self.advice().split(". "))
        try:
            with file.open("x", encoding="utf-8") as stream:
                stream.write(lines + yaml.safe_dump(read, sort_keys=False, allow_unicode=True, width=120))
        except FileExistsError as err:
            raise ScriptError(f"{file} is there already; remove it, or name another file") from err

    def _choose_in(self, application: dict[str, Any]) -> None:
        """Leave only the chosen members in an application, with their weights."""
        config, chosen = configuration.check_arguments(application), self.chosen.names
        gone = {each.deployment_name for each in config.nodes if each.name not in chosen}
        arguments = application["args"]
        arguments["members"] = [each for each in arguments["members"] if each["name"] in chosen]
        weights = dict(zip(chosen, self.panel.weights(self.chosen), strict=True))
        arguments["combiner"] = arguments.get("combiner", {}) | {"method": self.chosen.method, "weights": weights}
        ensemble = arguments.get("ensemble", {})
        # Without a quorum every member has to answer, and so it stays.
        if ensemble.get("quorum") is not None:
            ensemble["quorum"] = min(ensemble["quorum"], len(chosen))
        cascade = ensemble.get("cascade") or {"order": chosen}
        # Votes don't tell how sure members are, so a cascade refuses them.
        if set(cascade["order"]) != set(chosen) or self.chosen.method == VOTES:
            for name in ("cascade", "under_load"):
                ensemble.pop(name, None)
        arguments["ensemble"] = ensemble
        application["deployments"] = [each for each in application.get("deployments", []) if each["name"] not in gone]
