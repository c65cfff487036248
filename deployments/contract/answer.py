"""The graph's output for an image; `ensemble_serving.answer` has the fields of the JSON answer."""

from typing import NamedTuple

from deployments.contract.payload import Probabilities
from ensemble_serving.answer import Classification, ClassProbability, MemberAnswer, NodeCost, Receipt

__all__ = ["PROBABILITY_DIGITS", "Answer", "ClassProbability", "Classification", "MemberAnswer", "NodeCost", "Receipt"]

# Decimal places.
PROBABILITY_DIGITS = 6


class Answer(NamedTuple):
    """The graph's output for an image: the classification, and the probability of every class, float32 [C]."""

    classification: Classification
    probabilities: Probabilities
