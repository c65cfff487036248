"""The head of a classifier: which scores it answers, and how these become a distribution over the classes."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from deployments.repository.errors import ModelError

# softmax: rows that sum to 1. shares: rows of another sum, as percentages. sigmoid: each class by itself, from 0 to 1.
Head = Literal["softmax", "log-softmax", "logits", "sigmoid", "shares"]
HEADS: tuple[Head, ...] = get_args(Head)
# A row that sums to 1 within this, without negative values, is a distribution already.
SIMPLEX_ERROR = 1e-3
# Rows whose sums differ by less, and whose values differ by more, have one sum for all images; both relative.
SAME_SUM, DIFFERENT = 0.005, 0.05
# So many scores are not from 0 to 1, or at least so large a share of them 0, by chance.
ENOUGH_SCORES, MANY_ZEROS = 20, 0.1
# Sigmoid's values closer to 0 and 1 are taken for these.
NEAREST = 1e-7
# Operations that change no value, and those behind which no score is negative.
SHAPES = {"Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "FakeQuantize"}
ONE_SIDED = {"Relu", "SoftPlus", "Exp", "Abs", "Clamp"}


def last_operation(network: ov.Model) -> ov.Node:
    """Return the operation that computes the scores, before changes of shape and type."""
    node = network.get_results()[0].input_value(0).get_node()
    while node.get_type_name() in SHAPES:
        node = node.input_value(0).get_node()
    return node


def set_answer(network: ov.Model, answer: ov.Output) -> None:
    """Change what a network answers; its output keeps its names."""
    names = network.output(0).get_names()
    network.get_results()[0].input(0).replace_source_output(answer)
    network.validate_nodes_and_infer_types()
    network.output(0).get_tensor().set_names(names)


def check_scores(network: ov.Model) -> None:
    """Raise ModelError if a network answers which classes are the likeliest, and not how likely each class is."""
    if last_operation(network).get_type_name() == "TopK":
        raise ModelError(
            "the model answers the likeliest classes (its last operation is ArgMax or TopK), and no score for each "
            "class: export it without that operation, or name an output with the scores by --output"
        )


def is_distribution(scores: NDArray[np.float32]) -> bool:
    """Return whether every row is a distribution, so that it needs no softmax."""
    return bool(scores.min() >= 0 and np.abs(scores.sum(axis=1) - 1).max() <= SIMPLEX_ERROR)


def recognize(network: ov.Model, scores: NDArray[np.float32]) -> Head:
    """Recognize the head by the operation at its end, and by scores of some images, [N,classes].

    Raises:
        ModelError: the scores fit several heads; the message names the option that decides.
    """
    if scores.shape[1] == 1:
        return one_output(network)
    check_scores(network)
    scores = scores[np.isfinite(scores).all(axis=1)].astype(np.float64)
    end = last_operation(network).get_type_name()
    if not len(scores) or is_distribution(scores.astype(np.float32)):
        return "softmax" if len(scores) else "logits"
    if end in {"Sigmoid", "HardSigmoid"}:
        return "sigmoid"
    if end == "Tanh":
        raise ModelError(
            "its scores are from -1 to 1, by a Tanh, so that a softmax makes no class likely: export the model without "
            "its last operation, or say --head logits"
        )
    if scores.max() <= 0:
        sums = np.exp(scores).sum(axis=1)
        return "log-softmax" if np.abs(sums - 1).max() <= 10 * SIMPLEX_ERROR else "logits"
    # Rounding takes what is not negative a little below 0.
    if scores.min() < -SIMPLEX_ERROR * scores.max():
        return "logits"
    sums = scores.sum(axis=1)
    if np.ptp(sums) <= SAME_SUM * sums.mean() and np.ptp(scores, axis=0).max() > DIFFERENT * sums.mean():
        return "shares"
    if scores.max() <= 1 and scores.size >= ENOUGH_SCORES:
        raise ModelError(
            "its scores are all from 0 to 1, and do not sum to 1: say by --head whether they are `sigmoid` (each class "
            "by itself) or `logits`"
        )
    if end in ONE_SIDED or (scores.size >= ENOUGH_SCORES and (scores == 0).mean() >= MANY_ZEROS):
        raise ModelError(
            f"no score is negative, and they have no common sum (the last operation is {end}): say by --head whether "
            "they are `logits` or `shares` (divided by their sum)"
        )
    return "logits"


def with_head(network: ov.Model, head: Head) -> ov.Model:
    """Append what makes a distribution over the classes of a head's scores, [N,classes].

    A sigmoid's scores p become p / (1 - p), divided by the sum: exactly one of the classes is right, and each had its
    own say.
    """
    if head == "softmax":
        return network
    scores = network.get_results()[0].input_value(0)
    if head == "sigmoid":
        scores = _logits(scores)
    if head == "shares":
        total = opset13.maximum(opset13.reduce_sum(scores, np.array([1]), True), np.float32(NEAREST))
        answer = opset13.divide(scores, total)
    else:
        answer = opset13.softmax(scores, axis=1)
    set_answer(network, answer.output(0))
    return network


def in_order(network: ov.Model, order: Sequence[int]) -> ov.Model:
    """Append what puts the classes of a distribution, [N,classes], into another order."""
    answer = opset13.gather(network.get_results()[0].input_value(0), np.array(order), np.array(1))
    set_answer(network, answer.output(0))
    return network


def one_output(network: ov.Model) -> Head:
    """Recognize the head of a network whose only output is for the second of two classes.

    Raises:
        ModelError: the output may be a probability or a logit, or is no score.
    """
    check_scores(network)
    if (end := last_operation(network).get_type_name()) == "Sigmoid":
        return "sigmoid"
    raise ModelError(
        f"the model has one output, and its last operation is {end}: for two classes say by --head whether the output "
        "is `sigmoid`, the second class' probability, or `logits`, whose sigmoid that is"
    )


def with_two_classes(network: ov.Model, head: Head) -> None:
    """Change an output [N,1], for the second of two classes, to a distribution over both, in place."""
    scores = network.get_results()[0].input_value(0)
    logit = scores if head == "logits" else _logits(scores)
    answer = opset13.softmax(opset13.concat([opset13.multiply(logit, np.float32(0)), logit], 1), axis=1)
    set_answer(network, answer.output(0))


def _logits(scores: ov.Output) -> ov.Output:
    """Undo a sigmoid: take what went into it if it is the last operation, else compute log(p / (1 - p))."""
    last = scores.get_node()
    if last.get_type_name() == "Sigmoid":
        return last.input_value(0)
    inside = opset13.clamp(opset13.convert(scores, "f32"), NEAREST, 1 - NEAREST)
    rest = opset13.subtract(np.float32(1), inside)
    return opset13.subtract(opset13.log(inside), opset13.log(rest)).output(0)
