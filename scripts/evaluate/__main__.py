"""Measures top-1 on labelled images, before anything is served or by a running server.

    ensemble check my.yaml --data images/
    ensemble check --data test.zip --members resnet densenet --markdown accuracy.md --plot accuracy.svg
    ensemble check --data test.zip --url http://127.0.0.1:8000
    ensemble check --data train.zip --hold-out 5000 --members a b

By default it measures what a configuration serves: each member, in every
version of its model, and the ensemble with the configuration's weights, method and cascade. It prints the sizes of the
pixels, frequent confusions, and images on which the members disagree. Models run in this process, with the
server's own decoding, prediction and combination.

With --members it measures models of a repository, and their ensembles with equal weights; with --url what a running
server answers. Top-1 is in percent, with its 95 % interval; ECE is the expected calibration error, in percent: how far
the probabilities of answers are from the share of them that is right.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from deployments.combiner import known
from scripts import configuration
from scripts.dataset import Dataset, default_data
from scripts.errors import ScriptError, errors_in_one_line, positive
from scripts.evaluate import measure
from scripts.evaluate.accuracy import sample
from scripts.evaluate.report import plot, table
from scripts.flags import described
from scripts.repository import VARIABLE, default_repository
from scripts.results import add_files, check_files, write_files
from scripts.shipped import shipped

# Requests in flight.
AT_ONCE = 16


def results(args: argparse.Namespace) -> measure.Results:
    """Measure what the command line asks for."""
    dataset = Dataset.open(args.data).held_out(args.hold_out)
    if args.limit:
        dataset = sample(dataset, args.limit)
    repository = args.repository or default_repository()
    if args.members or (args.repository and not args.url):
        return measure.repository(repository, args.members, dataset, args.method or "mean", args.fit_weights)
    found = list(configuration.ours(configuration.read(args.config)))
    if len(found) != 1:
        raise ScriptError(
            f"{args.config} has {len(found)} applications of {configuration.IMPORT_PATH}; one is measured"
        )
    if args.url:
        # Its models may be there alone.
        config = configuration.check_arguments(found[0])
        if args.repository:
            config = config.model_copy(update={"model_repository": args.repository})
        return measure.running(args.url, config, dataset, args.connections or AT_ONCE)
    config, agreed = configuration.check(found[0])
    scores, sentences = measure.served(config, agreed, dataset, args.method, args.fit_weights)
    return scores, [*configuration.doubts(config, agreed), *sentences]


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = described(__doc__)
    parser.add_argument(
        "config", type=Path, nargs="?", help="a Serve config file (default: the bundled one), which names the members"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=default_data(),
        help="zip file or folder of <class>/*.jpg (default: $ENSEMBLE_DATA/cifar10/test.zip)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="images, drawn at random (default: all)")
    parser.add_argument("--members", nargs="+", default=[], metavar="NAME", help="measure these models instead")
    parser.add_argument("--hold-out", type=positive, metavar="N", help="take the images that training leaves out")
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="FOLDER",
        help=f"of --members (default: ${VARIABLE}, else ./models); alone: measure all models in it",
    )
    parser.add_argument("--method", type=known, help="how the ensembles combine")
    parser.add_argument(
        "--fit-weights",
        action="store_true",
        help="fit members' weights to the images, on which no member may have been trained",
    )
    parser.add_argument("--url", help="measure this server instead, as http://127.0.0.1:8000")
    parser.add_argument("--connections", type=positive, help=f"requests in flight, with --url (default: {AT_ONCE})")
    add_files(parser)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data is required where ENSEMBLE_DATA is not set")
    if args.url and (args.members or args.method or args.fit_weights):
        parser.error("--members, --method and --fit-weights are the server's with --url")
    if args.connections and not args.url:
        parser.error("--connections is for --url")
    if args.config and (args.members or (args.repository and not args.url)):
        parser.error(
            f"{args.config} names its members and their repository; leave it out, or --members and --repository"
        )
    args.config = args.config or shipped("serve_config.yaml")
    check_files(parser, args)
    return args


def main() -> None:
    """Parse the command line, measure and report."""
    args = parse()
    with errors_in_one_line():
        scores, sentences = results(args)
        shown = table(scores, sentences)
        shown.show()
        write_files(args, shown, [asdict(score) for score in scores], lambda file: plot(scores, file))


if __name__ == "__main__":
    main()
