"""What labelled images decide about a network: order of classes, normalization and resizing; and how it compares."""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openvino as ov
from msgspec.structs import replace as replace_fields

from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Preprocessing
from deployments.repository.errors import ModelError
from deployments.repository.repository import Model, find, versions
from ensemble_models.dataset import Dataset, check_image, indices, sample
from ensemble_models.options import Table
from ensemble_models.prediction import predict, runner
from ensemble_models.prepare import trials
from ensemble_models.prepare.orders import GIVEN, IMAGES, Permuted, usual_orders
from ensemble_models.prepare.source import CROP_RATIO, Normalization, usual
from ensemble_models.prepare.trial import Trial
from ensemble_models.statistics import Interval, less_surprised, paired
from ensemble_models.writing import model_names
from scripts.errors import ScriptError

# Labelled images that the usual ways are tried on.
MOST_TRIED = 500
# A way to resize that so many don't show to be better is not worth more of them.
MOST_RESIZED = 200
# So many points less than another model of the same images are worth a warning.
FAR_BELOW = 10.0
# So many points between top-1 and the mean probability of an answer are more than training leaves, even with mixtures.
FAR_OFF = 30.0


def drawn(path: Path) -> Dataset:
    """Draw images of a zip file or a folder, in any order, because ways are tried on the first ones first.

    Raises:
        DatasetError: see `Dataset.open`.
    """
    some = sample(Dataset.open(path), MOST_TRIED)
    return replace(some, names=tuple(random.Random(0).sample(some.names, len(some))))


def _other_models(repository: Path, name: str) -> list[Model]:
    """List the highest versions of the labelled models of a repository besides one."""
    found = []
    for other in model_names(repository):
        if other != name:
            with suppress(ModelError):
                found.append(find(repository, other))
    return [model for model in found if model.labels is not None]


def ways(given: Preprocessing, trial: Trial) -> list[Preprocessing]:
    """List the usual ways to resize, the first of which is taken unless another one is clearly better.

    Images that already have the model's size are taken whole first, others are cut as for ImageNet.
    """
    headers = map(check_image, trial.names, trial.encoded)
    fits = all((header.height, header.width) == given.size for header in headers)
    ratios = (1.0, CROP_RATIO) if fits else (CROP_RATIO, 1.0)
    whole = [replace_fields(given, resize=resize, crop_ratio=1.0) for resize in ("stretch", "letterbox")]
    return [*(replace_fields(given, crop_ratio=ratio) for ratio in ratios), *whole]


def choose_resizing(
    trial: Trial, normalization: Normalization, tried: Sequence[Preprocessing]
) -> tuple[Preprocessing, str]:
    """Choose the way to resize with which a model is right most often, and say why; see `ways`.

    A way is also better if it makes the right classes likelier, by the paired interval of the log loss.
    """
    outputs = trial.race([(normalization, way) for way in tried], MOST_RESIZED)
    right = [trial.right(each) for each in outputs]
    lines = [(way.key, str(Interval.share(each > 0)), str(len(each))) for way, each in zip(tried, right, strict=True)]
    Table(("resizing", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    images = max(map(len, right))
    rows = [row for row, each in enumerate(right) if len(each) == images]
    best = max(rows, key=lambda row: (right[row].mean(), -trial.loss(outputs[row])))
    if len(right[0]) < images or Interval.paired(right[best] - right[0]).low > 0:
        return tried[best], f"the best on {images} images"
    if best and less_surprised(outputs[0], outputs[best], trial.labels[:images]):
        return tried[best], f"the likeliest on {images} images"
    return tried[0], f"no other one is clearly better on {min(map(len, right))} images"


class Measured:
    """A network's trial on labelled images.

    Attributes:
        normalization: the chosen one; see `choose`.
    """

    normalization: Normalization

    def __init__(
        self, images: Dataset, given: Sequence[str] | None, network: ov.Model, resizing: Preprocessing,
        args: SimpleNamespace, *, is_given: bool,
    ) -> None:  # fmt: skip
        """Start a trial.

        Args:
            images: the labelled images.
            given: the classes as a file or the weights name them; None for the folders' names.
            network: float32 [N,H,W,3], normalized, to float32 [N,classes].
            resizing: the way to resize that is taken unless another one is better.
            args: the options of `ensemble prepare`.
            is_given: whether there is no other way to resize.

        Raises:
            ScriptError: the images have other classes.
        """
        self._images, self._args = images, args
        every = Dataset.open(images.path)
        others = [(model.name, model.labels or ()) for model in _other_models(args.repository, args.name)]
        orders = usual_orders(every.classes, others, given)
        if args.class_order not in {None, IMAGES}:
            several = usual_orders(every.classes, [])
            # One that is not listed is the same as the first one.
            order = args.class_order if args.class_order in several else next(iter(several))
            orders = {order: several[order]}
        # Of all images, and not only of those that were drawn.
        indices(every, next(iter(orders.values())), f"model {args.name!r}")
        truths = {order: indices(images, labels, f"model {args.name!r}") for order, labels in orders.items()}
        self._trial = Trial(images.names, [image for image, _ in images.read()], truths, orders, runner(network))
        self._ways = [resizing] if is_given else ways(resizing, self._trial)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names in the order that the images show."""
        return self._trial.orders[self._trial.order]

    @property
    def order(self) -> str:
        """How the order of the classes was found."""
        order, tried = self._trial.order, len(self._trial.orders)
        return "" if order == GIVEN else f", in {order} order{', the best of the usual ones' if tried > 1 else ''}"

    def choose(self, given: Normalization | None) -> tuple[Normalization, str]:
        """Choose the normalization, the given one if it is as good as any, and why; see `choose_normalization`.

        Raises:
            ScriptError: see `choose_normalization`; or another mean and standard deviation than a usual one is better.
        """
        args = self._args
        allowed = usual(args.channel_order, args.normalize) if given is None else [given]
        is_open = given is None and not args.normalize
        self._choose_by = partial(trials.choose_normalization, allowed, self._trial, is_open=is_open)
        try:
            doubt = self._choose()
        except Permuted as err:
            if args.class_order != IMAGES:
                raise
            labels = tuple(self.labels[label] for label in err.found)
            self._trial.set_order(IMAGES, labels, indices(self._images, labels, f"model {args.name!r}"))
            doubt = self._choose()
        if is_open:
            better = trials.better_fit(self._trial, self.normalization, self._ways[0])
            if better is not None:
                raise ScriptError(
                    f"another normalization than the usual ones is clearly better: of those tried {better.flags}. Pass "
                    f"the --mean and --std of the training, or {self.normalization.flags} to keep the best usual one"
                )
        return self.normalization, f"on {len(self._trial.labels)} images of {args.data}{doubt}"

    def _choose(self) -> str:
        """Choose by the first way to resize with which the images decide; raise what it raised if none does."""
        undecided = []
        for way in self._ways:
            try:
                self.normalization, doubt = self._choose_by(way)
            except trials.Undecided as err:
                undecided.append(err)
                continue
            self._ways = [way, *(each for each in self._ways if each != way)]
            return doubt
        raise undecided[0]

    def resize(self) -> tuple[Preprocessing, str]:
        """Choose the way to resize, and say why; see `choose_resizing`."""
        way, why = choose_resizing(self._trial, self.normalization, self._ways)
        if way != self._ways[0]:
            self._ways = [way]
            self.normalization, _ = self._choose_by(way)
        return way, why

    def doubt_resizing(self) -> str:
        """Say which usual way to resize is clearly better than the given one; empty if there is none."""
        given = self._ways[0]
        usual = ways(replace_fields(given, resize="crop"), self._trial)
        tried = [given, *(way for way in usual if way != given)]
        way, why = choose_resizing(self._trial, self.normalization, tried)
        return "" if way == given else f"; but {way.key} is {why}, which --resize and --crop-ratio take"

    def level(self) -> tuple[dict[str, Any], list[str]]:
        """Measure top-1 by the decided way on all images; return it for the metadata, and sentences that compare it.

        Raises:
            ScriptError: it is below what `--expected-top1` names.
        """
        outputs = self._trial.outputs((self.normalization, self._ways[0]))
        share, expected = Interval.share(self._trial.right(outputs) > 0), self._args.expected_top1
        name, sure = self._args.data.name, 100 * float(outputs.max(axis=1).mean())
        if expected is not None and share.high < expected:
            raise ScriptError(
                f"top-1 is {share} on {len(outputs)} images, below the expected {expected:g} %: something differs "
                "from the training; see --resize, --crop-ratio, --interpolation, --mean and --std, or expect less"
            )
        measured = {"data": name, "images": len(outputs), "top1": share.mean}
        told = [f"top-1: {share} on {len(outputs)} images of {name}, which helped to decide"]
        doubt = f"warning: the mean probability of an answer is {sure:.0f} %"
        if share.low - sure > FAR_OFF:
            told.append(f"{doubt}: fit a temperature by `ensemble calibrate`, or an ensemble hardly hears this model")
        if sure - share.high > FAR_OFF:
            told.append(
                f"{doubt}. Too few images trained the model, or it takes pixels in a way that was not tried, as "
                "another colour space or crop; --reference compares it"
            )
        return measured, [*told, *self._below_others(measured, share), *self._before(outputs)]

    def _below_others(self, measured: dict[str, Any], share: Interval) -> Iterator[str]:
        for model in _other_models(self._args.repository, self._args.name):
            other = model.metadata.get("prepared", {})
            alike = all(other.get(key) == measured[key] for key in ("data", "images"))
            if alike and other["top1"] - FAR_BELOW > share.high:
                yield (
                    f"warning: {model.name!r} reached {other['top1']:.1f} % on these images. If this model should, "
                    "--expected-top1 refuses it, and its training may have used another --mean and --std or --resize"
                )
                return

    def _before(self, outputs: Probabilities) -> Iterator[str]:
        """Compare with the version that was served before, on the same images."""
        repository, name = self._args.repository, self._args.name
        if not versions(repository, name):
            return
        before = find(repository, name)
        if before.labels is None or set(before.labels) != set(self.labels):
            yield f"version {before.version} before it has other classes"
            return
        [theirs] = predict([before], self._images)
        answers = theirs[:, [before.labels.index(label) for label in self.labels]]
        differ = (answers.argmax(1) != outputs.argmax(1)).mean()
        difference = Interval.paired(self._trial.right(outputs) - self._trial.right(answers))
        yield (
            f"compared with version {before.version}: {100 * differ:.1f} % of the answers differ, top-1 "
            f"{difference.mean:+.1f} points ({paired(difference)})"
        )
