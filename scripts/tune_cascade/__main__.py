"""Chooses a cascade's order and thresholds on one half of labelled images, and judges them on the other.

    ensemble tune-cascade --data images.zip --loss 0.1
    ensemble tune-cascade --data images.zip --members gate resnet densenet --gates gate --json cascade.json
    ensemble tune-cascade --data train.zip --hold-out 2500     # the images that training left out

The members' predictions come from the server's own decoding, prediction and combination. The cheapest cascade wins that
loses at most `--loss` points of top-1 against all members together; a member costs the CPU time of its inference on
this machine. Take images that no member was trained on. Prints the lines for the configuration.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method, known
from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.members.openvino import OpenVino
from deployments.members.predictor import Predictor
from deployments.repository.repository import Model, find
from scripts.dataset import Dataset, default_data
from scripts.errors import ScriptError, errors_in_one_line, positive, zero_or_more
from scripts.evaluate.accuracy import predict
from scripts.evaluate.candidates import preprocessing
from scripts.evaluate.ensembles import Members
from scripts.evaluate.measure import truth_of
from scripts.evaluate.unseen import check_unseen
from scripts.flags import described
from scripts.interval import Interval
from scripts.repository import add_repository
from scripts.results import add_files, check_files, write_files
from scripts.tune_cascade.search import Choice, check_count, check_enough, choose, halves

BATCH, TIMED = 8, 15


def cost_ms(model: Model) -> float:
    """The CPU time of an image of a batch on this machine, milliseconds; the median of several batches."""
    size = preprocessing(model).size
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, *size, 3), np.uint8)

    async def timed() -> list[float]:
        member = Predictor(OpenVino(name=model.name), model, size, BATCH)
        took = []
        for _ in range(TIMED):
            began = time.process_time()
            await member(Batch(pixels, (Item(),) * BATCH))
            took.append(time.process_time() - began)
        return took

    return float(np.median(asyncio.run(timed()))) * 1000 / BATCH


def members_of(models: Sequence[Model], gates: Sequence[str], dataset: Dataset, method: Method) -> Members:
    """The models' predictions for a dataset, and what an inference costs.

    Raises:
        ScriptError: labels differ, a gate is no member, every member is a gate, or there are too few or too many.
    """
    labels = truth_of(models, dataset)
    names = [model.name for model in models]
    if unknown := sorted(set(gates) - set(names)):
        raise ScriptError(f"--gates: {unknown[0]!r} is none of the members {names}")
    if set(gates) == set(names):
        raise ScriptError("--gates: a member that is no gate is needed to answer")
    check_count(len(models))
    scores = dict(zip(names, predict(models, dataset), strict=True))
    weights = {name: 0.0 if name in gates else 1.0 for name in names}
    return Members(scores, labels, weights, {model.name: cost_ms(model) for model in models}, method)


def report(members: Members, choosing: NDArray[np.bool_], choice: Choice) -> dict[str, Any]:
    """Print what a choice does to the images that had no part in it, and what to write into the configuration."""
    judged = members.part(~choosing)
    walk, full, labels = judged.walk(choice.order, choice.exit_at), judged.full(), judged.labels
    hits, full_hits = Interval.share(walk.answers == labels), Interval.share(full == labels)
    difference = Interval.paired((walk.answers == labels).astype(float) - (full == labels))
    for name, scores in judged.scores.items():
        print(f"{name}: top-1 {Interval.share(scores.argmax(axis=1) == labels)}, {judged.costs[name]:.2f} ms per image")
    print(f"all together: top-1 {full_hits}")
    print(
        f"the cascade: top-1 {hits}, {difference.mean:+.2f} points "
        f"({difference.low:+.2f} to {difference.high:+.2f}, paired) at {walk.cost / sum(judged.costs.values()):.2f} "
        "of the inference"
    )
    print(f"answered otherwise than by all together: {Interval.share(walk.answers != full)}")
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in zip(choice.order, walk.stops, strict=True))
    print(f"the last one asked: {shares}")
    print(f"chosen on {choosing.sum():,} images, judged on {(~choosing).sum():,} others; intervals are of 95 %\n")
    print(f"ensemble: {{cascade: {{order: [{', '.join(choice.order)}], exit_at: {list(choice.exit_at)}}}}}")
    if not all(members.weights.values()) or members.method != "mean":
        weights = ", ".join(f"{name}: {weight:g}" for name, weight in members.weights.items())
        print(f"combiner: {{method: {members.method}, weights: {{{weights}}}}}")
    return {
        **asdict(choice),
        "top1": asdict(hits),
        "full_top1": asdict(full_hits),
        "difference": asdict(difference),
        "stops": dict(zip(choice.order, walk.stops, strict=True)),
        "costs_ms": dict(judged.costs),
        "images": {"chosen_on": int(choosing.sum()), "judged_on": int((~choosing).sum())},
    }


def main() -> None:
    """Parse the command line, choose and report."""
    parser = described(__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=default_data(),
        metavar="PATH",
        help="labelled images, <class>/*.jpg, folder or zip file",
    )
    parser.add_argument("--hold-out", type=positive, metavar="N", help="take the images that training leaves out")
    parser.add_argument("--members", nargs="+", default=["resnet", "densenet"], metavar="NAME")
    parser.add_argument(
        "--gates",
        nargs="+",
        default=[],
        metavar="NAME",
        help="members of weight 0, which are called first and not combined",
    )
    parser.add_argument(
        "--loss", type=zero_or_more, default=0.1, metavar="POINTS", help="most points of top-1 to lose; default: 0.1"
    )
    parser.add_argument("--method", type=known, default="mean")
    add_repository(parser)
    add_files(parser, "json")
    args = parser.parse_args()
    if args.data is None:
        parser.error("name the images by --data")
    check_files(parser, args)
    with errors_in_one_line():
        dataset = Dataset.open(args.data).held_out(args.hold_out)
        choosing = halves(dataset)
        check_enough(int(choosing.sum()), args.loss)
        models = [find(args.repository, name) for name in dict.fromkeys(args.members)]
        for model in models:
            check_unseen(model, dataset)
        members = members_of(models, args.gates, dataset, args.method)
        choice = choose(members.part(choosing), args.loss)
        write_files(args, None, report(members, choosing, choice))


if __name__ == "__main__":
    main()
