"""The command `ensemble check`."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click

from deployments.contract.preprocessing import Preprocessing
from deployments.repository.network import load
from deployments.repository.repository import find
from ensemble_models.check import measure, served
from ensemble_models.check.report import table
from ensemble_models.dataset import Dataset, sample
from ensemble_models.ensembles import method
from ensemble_models.options import (
    FILE,
    POSITIVE,
    VARIABLE,
    Command,
    Number,
    OutputFile,
    data_option,
    default_repository,
    file_options,
    option,
    write_files,
)
from ensemble_models.prediction import of_configuration, of_models
from ensemble_models.reference import Reference, compare
from ensemble_models.subsets import Limits
from ensemble_models.writing import model_names
from scripts import configuration
from scripts.errors import ScriptError
from scripts.shipped import shipped

# Requests in flight.
AT_ONCE = 16


def application(args: SimpleNamespace) -> dict[str, Any]:
    """Return the application of the configuration; raise ScriptError if there are several, or none."""
    file = args.config or shipped("serve_config.yaml")
    found = list(configuration.ours(configuration.read(file)))
    if len(found) != 1:
        raise ScriptError(f"{file} has {len(found)} applications of {configuration.IMPORT_PATH}; one is measured")
    return found[0]


def measured(args: SimpleNamespace) -> measure.Results:
    """Measure what the command line asks for."""
    dataset = Dataset.open(args.data).held_out(args.hold_out)
    if args.limit:
        dataset = sample(dataset, args.limit)
    repository = args.repository or default_repository()
    if args.members or (args.repository and not args.url):
        return measure.repository(repository, args.members, dataset, args.method or "mean")
    if args.url:
        # Its models may be there alone.
        config = configuration.check_arguments(application(args))
        if args.repository:
            config = config.model_copy(update={"model_repository": args.repository})
        return measure.Results(*served.running(args.url, config, dataset, args.connections or AT_ONCE))
    config, agreed = configuration.check(application(args))
    results = measure.served(config, agreed, dataset, args.method)
    return results._replace(sentences=[*configuration.doubts(config, agreed), *results.sentences])


def compare_with(args: SimpleNamespace) -> None:
    """Compare models with the answers of a reference; see `reference.compare`.

    Raises:
        ScriptError: none of the models was prepared, or the reference is of other classes or images.
    """
    if args.members or args.repository:
        repository = args.repository or default_repository()
        candidates = of_models([find(repository, name) for name in args.members or model_names(repository)])
    else:
        candidates = [each for each in of_configuration(*configuration.check(application(args))) if each.is_served]
    for candidate in candidates:
        model, wanted = candidate.model, candidate.wanted
        if (
            model is None
            or model.labels is None
            or model.path.suffix != ".xml"
            or not isinstance(wanted, Preprocessing)
        ):
            print(f"{candidate.name}: not compared, because `ensemble prepare` did not write it")
            continue
        print(f"{candidate.name}, version {model.version}:")
        compare(Reference.read(args.reference, model.labels, args.data), load(model), wanted, model.labels)


def refuse_contradictions(args: SimpleNamespace) -> None:
    """Raise UsageError for options that are not for each other."""
    of_choice = args.write or args.max_cost or args.min_top1 or args.plot
    of_models_alone = args.members or (args.repository and not args.url)
    wrong = {
        "--reference is for models, not for --url": args.reference and args.url,
        "--members and --method are the server's with --url": args.url and (args.members or args.method),
        "--write, --max-cost, --min-top1 and --plot are for members that run here": args.url and of_choice,
        "--write writes CONFIG's members; `ensemble init` writes --members": args.write and args.members,
        "--connections is for --url": args.connections and not args.url,
        "CONFIG names members and repository; leave it out, or the two options": args.config and of_models_alone,
    }
    for message, is_given in wrong.items():
        if is_given:
            raise click.UsageError(message)


@click.command("check", cls=Command)
@click.argument("config", type=FILE, required=False)
@data_option
@option("--limit", type=POSITIVE, metavar="N", help="Images, drawn at random; default: all.")
@option("--members", multiple=True, metavar="NAME...", help="Measure these models instead of CONFIG.")
@option("--hold-out", type=POSITIVE, metavar="N", help="Take the images that training leaves out.")
@option(
    "--repository",
    type=FILE,
    metavar="FOLDER",
    help=f"Repository of --members; default: ${VARIABLE}, else ./models; alone: measure all models in it.",
)
@option("--method", type=method, help="How the ensembles combine members.")
@option("--reference", type=FILE, help="Compare with a CSV of another program's answers (file, label).")
@option("--url", help="Measure this server instead of CONFIG, as http://127.0.0.1:8000.")
@option("--connections", type=POSITIVE, help=f"Requests in flight, with --url; default: {AT_ONCE}.")
@option("--max-cost", type=Number(), metavar="MS", help="The most CPU time per image of the advised members.")
@option("--min-top1", type=Number(below=100), metavar="PERCENT", help="The least top-1 of the advised members.")
@option("--write", type=OutputFile(), metavar="FILE.yaml", help="Write CONFIG with the advised members.")
@file_options("json", "markdown")
@option("--plot", type=OutputFile(), metavar="FILE", help="Top-1 over CPU time, PNG or SVG; needs Matplotlib.")
def main(**given: Any) -> None:
    """Measure top-1 on labelled images, before anything is served or by a running server.

    ensemble check my.yaml --data images/
    ensemble check my.yaml --data images/ --max-cost 5 --write better.yaml --plot members.svg
    ensemble check --data test.zip --members resnet densenet --markdown accuracy.md
    ensemble check --data test.zip --url http://127.0.0.1:8000
    ensemble check --data train.zip --hold-out 5000 --members a b

    By default it measures what CONFIG serves, a Serve config file (default: the bundled one): each member, in every
    version of its model, and the ensemble with the configuration's weights, method and cascade. It prints the sizes of
    the pixels, frequent confusions, and images on which the members disagree. Models run in this process, with the
    server's own decoding, prediction and combination.

    A second table has the subsets of members that pay: how much top-1 each one gains over the best member, and its CPU
    time per image. The advised subset is the cheapest one that these images do not show to be worse than the best;
    other images judge it, by cross-validation. --write writes a configuration of it.

    With --reference it compares each member with the answers of the program that trained it (docs/parity.md), shows the
    images that differ most, and tries the usual reasons.

    With --members it measures models of a repository, and their ensembles with equal weights; with --url what a
    running server answers. Top-1 is in percent, with its 95 % interval; ECE is the expected calibration error, in
    percent: how far the probabilities of answers are from the share of right answers.
    """
    args = SimpleNamespace(**given)
    refuse_contradictions(args)
    if args.reference is not None:
        return compare_with(args)
    found = measured(args)
    shown, records = [table(found.scores, found.sentences)], list[Any](found.scores)
    if found.choice is not None:
        choice = replace(found.choice, limits=Limits(args.max_cost, args.min_top1))
        shown.append(choice.table())
        records += map(choice.record, choice.shown)
        if args.write is not None:
            choice.write(configuration.read(args.config or shipped("serve_config.yaml")), args.write)
            print(f"wrote {args.write}, which serves {choice.chosen}")
    elif args.write or args.max_cost or args.min_top1 or args.plot:
        raise ScriptError("there is no choice: it needs two members with models on this machine")
    for each in shown:
        each.show()
    write_files(args, shown[0], records, shown[1:])
    if found.choice is not None and args.plot is not None:
        choice.plot(args.plot)


if __name__ == "__main__":
    main()
