"""Measures a running server by its answers to every image of a dataset."""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Probabilities
from deployments.repository.address import open_repository
from deployments.repository.errors import ModelError
from ensemble_models.check.report import ENSEMBLE, Score, gain, joined
from ensemble_models.client import KEY, classify
from ensemble_models.dataset import Dataset, folder_name, label, same_folder
from ensemble_models.prediction import UNKNOWN, precision
from ensemble_serving.transports import Request, once
from ensemble_serving.url import parsed
from graph.config import EnsembleConfig
from scripts.errors import ScriptError

# For the server's own figures.
TIMEOUT_S = 5.0


@dataclass
class Answers:
    """The counts of a server's answers.

    Attributes:
        images: how many it classified.
        votes: how probable each answer was, and whether it was right, by member name, and the ensemble's under None; in
            a cascade a member does not answer every image.
        versions: the version of each member that answered.
        labels: every label that was an answer, by the folder of its images.
    """

    images: int = 0
    votes: dict[str | None, list[tuple[float, bool]]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def count(self, answer: dict[str, Any], wanted: str) -> None:
        """Count the answer to an image of that label.

        Raises:
            ScriptError: it is an error, lacks a member, comes from other versions than those before, or names a class
                that has the folder of another one.
        """
        if "error" in answer:
            raise ScriptError(f"the server refused an image: {answer['error'].get('message')}")
        members, versions = answer["members"], answer["model_versions"]
        if missing := answer.get("missing"):
            raise ScriptError(f"an image was answered without a member ({missing}), which would count as the ensemble")
        if answer.get("load_shed"):
            raise ScriptError("the load left members of the cascade out of an answer; lower --connections")
        # A cascade asks some members about some of the images only.
        if any(self.versions.get(name, version) != version for name, version in versions.items()):
            raise ScriptError(
                f"the served versions changed from {self.versions} to {versions}; load no other version meanwhile, and "
                "set the share of a canary to 0"
            )
        self.versions |= versions
        self.images += 1
        for name, vote in {None: answer, **members}.items():
            answered = folder_name(vote["label"])
            self.votes.setdefault(name, []).append((vote["probability"], answered == wanted))
            if (other := self.labels.setdefault(answered, vote["label"])) != vote["label"]:
                raise ScriptError(same_folder(other, vote["label"]))

    def of(self, name: str | None) -> tuple[Probabilities, NDArray[np.bool_]]:
        """Return the probabilities of a member's answers, float32 [N], and whether they were right, bool [N]."""
        sure, right = zip(*self.votes[name], strict=True)
        return np.array(sure, np.float32), np.array(right, np.bool_)


def ask(url: str, dataset: Dataset, connections: int) -> Answers:
    """Send every image to a server, over several connections, and count the right answers.

    Raises:
        ScriptError: the server can't be reached, refuses an image, changes a model meanwhile, or answers only labels
            that the dataset doesn't have.
    """
    answers = Answers()

    def note(position: int, answer: dict[str, Any]) -> None:
        answers.count(answer, label(dataset.names[position]))

    images = (image for image, _ in dataset.read())
    asyncio.run(classify(url, images, len(dataset), note, connections, members=True))
    if not answers.labels.keys() & set(dataset.classes):
        raise ScriptError(
            f"no answer is a class of {dataset.path}: the server answers {sorted(answers.labels)[:3]}, the classes are "
            f"{list(dataset.classes[:3])}, ...; evaluate it on images of its own classes"
        )
    return answers


def running(url: str, config: EnsembleConfig, dataset: Dataset, connections: int) -> tuple[list[Score], list[str]]:
    """Measure a running server: the members that it serves, and its ensemble.

    Returns:
        The scores of the members and of the ensemble, and sentences. The precision is `unknown` for models that are
        not in the configured repository.

    Raises:
        ScriptError: see `ask`.
    """
    answers = ask(url, dataset, connections)
    members = [
        Score.of(name, _precision(config, name, version), *answers.of(name), version)
        for name, version in answers.versions.items()
        if len(answers.votes[name]) == answers.images
    ]
    ensemble = Score.of(ENSEMBLE, joined(members), *answers.of(None))
    sentences = [gain(ensemble, members)] if len(members) == len(answers.versions) else []
    sentences += [
        f"The cascade asked {name} about {100 * len(answers.votes[name]) / answers.images:.1f} % of the images."
        for name in answers.versions
        if len(answers.votes[name]) < answers.images
    ]
    return [*members, ensemble], [*sentences, *contributions(url)]


def contributions(url: str) -> Iterator[str]:
    """Describe what each version of a member has added to the server's answers, by its `/stats`, where it has them."""
    if not url.startswith("http"):
        return
    key = os.environ.get(KEY)
    headers = (("authorization", f"Bearer {key}"),) if key else ()
    request = Request(f"{parsed(url).path.rstrip('/')}/stats", headers=headers, method="GET")
    try:
        found = json.loads(once(url, request, timeout_s=TIMEOUT_S).body).get("rollout", {}).get("contributions", {})
    except (OSError, ValueError):
        return
    for name, versions in found.items():
        for version, each in versions.items():
            changed = each["changed"]
            counts = f", mended {each['mended']} and spoiled {each['spoiled']} of {each['labelled']} labelled answers"
            labelled = counts if each["labelled"] else ""
            yield (
                f"Since its start this replica's {name} {version} changed {changed['count']:,} of {changed['total']:,} "
                f"answers ({100 * changed['low']:.2f} to {100 * changed['high']:.2f} %){labelled}."
            )


def _precision(config: EnsembleConfig, name: str, version: int) -> str:
    model = next((member.model_name for member in config.members if member.name == name), name)
    try:
        return precision(open_repository(config.model_repository).find(model, version))
    except ModelError:
        return UNKNOWN
