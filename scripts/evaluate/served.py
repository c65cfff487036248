"""What a running server answers to every image of a dataset."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Probabilities
from scripts.client import Client, for_each
from scripts.dataset import Dataset, folder_name, same_folder
from scripts.errors import ScriptError


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

    def count(self, answer: dict[str, Any], label: str) -> None:
        """Count the answer to an image of that label.

        Raises:
            ScriptError: it is an error, lacks a member, comes from other versions than those before, or names a class
                that has the folder of another one.
        """
        if "error" in answer:
            raise ScriptError(f"the server refused an image: {answer['error'].get('message')}")
        members, versions = answer.get("members"), answer.get("model_versions")
        if not isinstance(members, dict) or not isinstance(versions, dict):
            raise ScriptError(
                f"an answer has no members or model_versions: {str(answer)[:200]}; is it ensemble-serving?"
            )
        if missing := answer.get("missing"):
            raise ScriptError(f"an image was answered without a member ({missing}), which would count as the ensemble")
        if answer.get("eased"):
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
            self.votes.setdefault(name, []).append((vote["probability"], answered == label))
            if (other := self.labels.setdefault(answered, vote["label"])) != vote["label"]:
                raise ScriptError(same_folder(other, vote["label"]))

    def asked(self, name: str | None) -> int:
        """Count the images that a member answered, or the ensemble."""
        return len(self.votes[name])

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

    async def send() -> None:
        async with Client(url, connections) as client:

            async def one(image: tuple[bytes, str]) -> None:
                answers.count(await client.classify(image[0], members=True), image[1])

            await for_each(dataset.read(), one, connections, len(dataset))

    asyncio.run(send())
    if not answers.labels.keys() & set(dataset.classes):
        raise ScriptError(
            f"no answer is a class of {dataset.path}: the server answers {sorted(answers.labels)[:3]}, the classes are "
            f"{list(dataset.classes[:3])}, ...; evaluate it on images of its own classes"
        )
    return answers
