"""The decisions by which a network becomes a member: size, layout, labels, normalization, resizing, and why each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openvino as ov

from deployments.contract.preprocessing import Preprocessing, Resize, Size
from deployments.repository.heads import Head, recognize
from deployments.repository.layout import layout_of
from deployments.repository.network import class_count
from ensemble_models.baking import Color, bake, check_ends, static_size
from ensemble_models.dataset import Dataset, decode_all
from ensemble_models.exporters.names import fitting, read_names
from ensemble_models.prediction import scores_of
from ensemble_models.prepare.measured import Measured, drawn
from ensemble_models.prepare.source import CROP_RATIO, WHITE, Normalization, Source
from ensemble_models.reference import Reference, compare
from ensemble_models.writing import input_metadata
from scripts.errors import ScriptError

# The options that say a fact which an exporter leaves open, where they have another name.
FLAGS = {
    "order": ("channel_order",),
    "mean": ("mean", "normalize"),
    "std": ("std", "normalize"),
    "resize": ("resize", "crop_ratio"),
}
# Pixels from 0 to 255 as they are.
PLAIN = Normalization("BGR", (0.0,) * 3, (1 / WHITE,) * 3)
# Images by whose scores the head is recognized.
FEW_SHOWN = 16

# What is done with the scores of a head.
HEADS_DO = {
    "softmax": "the model answers probabilities",
    "log-softmax": "the model answers logarithms of probabilities, of which a softmax makes probabilities",
    "logits": "a softmax is added to its scores",
    "sigmoid": "each class by itself; p / (1 - p), divided by the sum, is added, because one class is right",
    "shares": "its scores are divided by their sum",
}


class Preparation:
    """The decisions about a network, each with its reason, in the order in which one needs another."""

    def __init__(self, source: Source, args: SimpleNamespace) -> None:
        """Decide everything, by the source and by the options of `ensemble prepare`.

        Raises:
            ModelError: the network can't become a member.
            ScriptError: a flag is missing or doesn't fit the model.
        """
        self._source, self._args = source, args
        self._check_open()
        check_ends(source.network)
        shape = source.network.input(0).get_partial_shape()
        self._layout = layout_of(shape, self._known("layout"))
        own, stated = static_size(source.network, self._layout), source.get("size")
        if stated and own and stated != own and not args.size:
            raise ScriptError(
                f"{args.source} takes {own[0]} x {own[1]} pixels, and {source.stated.where.get('size', 'its library')} "
                f"says {stated[0]} x {stated[1]}; say which by --size"
            )
        size = args.size or stated or own
        if size is None:
            raise ScriptError(f"{args.source} takes images of any size; say which by --size HEIGHT WIDTH")
        self._size: Size = size
        self._resizing = self._given_resizing()
        images = drawn(args.data) if args.data else None
        self._head: Head = "logits"
        self._head, by_head = self._decide_head(images)
        # Two, if there is one score.
        self._classes = class_count(self.baked(PLAIN))
        self._labels, named = self._decide_labels()
        self._measured, self._unusable = self._usable(images)
        self._normalization, normalized = self._decide_normalization()
        resized = self._decide_resizing()
        self._level, compared = self._measured.level() if self._measured else ({}, [])
        if self._measured is not None:
            self._normalization = self._measured.normalization
            self._labels, named = self._measured.labels, f"{named}{self._measured.order}"
        shown = ", ".join((self._labels or ())[:3]) + (", ..." if len(self._labels or ()) > 3 else "")
        self.reasons = [
            f"size: {size[0]} x {size[1]} pixels, {self._by('size', args.size, 'as the model fixes it')}",
            f"layout: {self._layout}, {self._by('layout', args.layout, f'by its input {shape}')}",
            f"channels and normalization: {self._normalization.flags}, {normalized}",
            f"resizing: {self._resizing.key}, {resized}",
            f"classes: {self._classes}, {shown}{', ' if shown else ''}{named}",
            f"head: {self._head}, {by_head}: {HEADS_DO[self._head]}",
            *compared,
        ]

    def compare(self, file: Path, folder: Path) -> None:
        """Compare with the answers of a reference; see `reference.compare`.

        Raises:
            ScriptError: another way agrees clearly better, or the answers are others.
        """
        if self._labels is None:
            raise ScriptError("--reference needs the names of the classes: pass --labels")
        reference = Reference.read(file, self._labels, folder)
        if problem := compare(reference, self.baked(), self._resizing, self._labels):
            raise ScriptError(problem)

    def baked(self, normalization: Normalization | None = None, **other: Any) -> ov.Model:
        """Make the network with the ensemble's signature, with the decided normalization or another one inside."""
        chosen = normalization or self._normalization
        wanted: dict[str, Any] = {
            "size": self._size,
            "mean": [value * WHITE for value in chosen.mean],
            "scale": [round(value * WHITE, 6) for value in chosen.std],
            "channel_order": chosen.order,
            "layout": self._layout,
            "head": self._head,
        }
        return bake(self._source.network.clone(), **{**wanted, **other})

    def _decide_head(self, images: Dataset | None) -> tuple[Head, str]:
        """Recognize the head by the scores of noise, and of some images; see `recognize`."""
        few = None
        if images is not None:
            shown = replace(images, names=images.names[:FEW_SHOWN])
            few = decode_all(shown.names, [image for image, _ in shown.read()], self._resizing)
        plain = self.baked(Normalization.usual("RGB", "unit"), head=None)
        scores = scores_of(plain, self._size, few)
        if self._args.head:
            return self._args.head, "by --head"
        return recognize(plain, scores), f"by its scores of noise{'' if few is None else ' and images'}"

    def _known(self, fact: str) -> Any:
        """Return what an option or an exporter says about a fact; None if neither does."""
        return getattr(self._args, fact) or self._source.get(fact)

    def _by(self, fact: str, flag: object, otherwise: str) -> str:
        """Name the origin of a fact: an option, the place where an exporter states it, or another one."""
        where = self._source.stated.where
        return "by the flags" if flag else f"by {where[fact]}" if fact in where else otherwise

    def _check_open(self) -> None:
        """Raise ScriptError for a fact that its exporter leaves open and neither options nor images decide."""
        for fact, sentence in self._source.open.items():
            flags = FLAGS.get(fact, (fact,))
            by_images = self._args.data is not None and fact not in {"labels", "head", "size", "layout"}
            if not by_images and not any(getattr(self._args, flag, None) for flag in flags):
                options = " or ".join(f"--{flag.replace('_', '-')}" for flag in flags)
                raise ScriptError(f"{self._args.source}: {sentence}; say it by {options}")

    def metadata(self) -> dict[str, Any]:
        """Make the content of `metadata.json`."""
        usual, wanted = Preprocessing(self._size), self._resizing
        fields = {name: getattr(wanted, name) for name in ("resize", "interpolation", "border")}
        return {
            **({"classes": list(self._labels)} if self._labels else {}),
            "input": {
                **input_metadata(self._size, wanted.crop_ratio),
                **{name: value for name, value in fields.items() if value != getattr(usual, name)},
            },
            **({"prepared": self._level} if self._level else {}),
            "source": {
                "tool": "scripts.prepare",
                **self._source.origin,
                "mean": list(self._normalization.mean),
                "std": list(self._normalization.std),
                "channel_order": self._normalization.order,
                "layout": self._layout,
                **({"stated": dict(self._source.stated.where)} if self._source.stated.where else {}),
                "head": self._head,
                "openvino": ov.__version__,
            },
        }

    def _decide_labels(self) -> tuple[Sequence[str] | None, str]:
        labels, where = self._source.get("labels"), self._source.stated.where.get("labels", "the weights")
        if self._args.labels:
            labels, where = read_names(self._args.labels), str(self._args.labels)
        if labels is None:
            if self._args.data:
                return None, f"named by the folders of {self._args.data}"
            return None, "without names: those of the members that it is served with are taken; --labels gives its own"
        labels = fitting(labels, self._classes)
        if len(labels) != self._classes:
            raise ScriptError(
                f"the model has {self._classes} classes, but there are {len(labels)} labels in {where}; name another "
                "file by --labels"
            )
        return labels, f"named by {where}"

    def _usable(self, images: Dataset | None) -> tuple[Measured | None, str]:
        """Start the trial on images that decisions are measured on, or say why there is none."""
        if images is None:
            return None, "there are no labelled images"
        if self._labels is None and (count := len(Dataset.open(images.path).classes)) != self._classes:
            problem = f"{images.path} has {count} classes, and the model {self._classes}"
            return None, f"{problem}; name the model's by --labels"
        network, is_given = self.baked(PLAIN, pixels=ov.Type.f32), self._is_resizing_given()
        try:
            return Measured(images, self._labels, network, self._resizing, self._args, is_given=is_given), ""
        except ScriptError as err:
            return None, str(err)

    def _decide_normalization(self) -> tuple[Normalization, str]:
        given = self._given_normalization()
        is_own = given is not None and given == self._source.normalization
        by = self._by("mean", not is_own, "as the weights were trained")
        if self._measured is None:
            if given is not None:
                return given, f"{by}; not measured: {self._unusable}"
            raise ScriptError(
                f"no file says how its model takes pixels, and {self._unusable}: name labelled images (<class>/*.jpg) "
                "by --data, or say it by --channel-order RGB|BGR and --normalize imagenet|unit|symmetric|none|..."
            )
        chosen, why = self._measured.choose(given)
        return chosen, f"{by if given else 'the best'} {why}"

    def _given_normalization(self) -> Normalization | None:
        """Read the normalization from flags and weights; None if a part of it is missing."""
        own, args = self._source.normalization, self._args
        if own is not None and "order" in self._source.open:
            own = replace(own, order=args.channel_order) if args.channel_order else None
        order: Color | None = args.channel_order or (own.order if own is not None else None)
        if (args.mean or args.std) and (args.normalize or order is None):
            raise ScriptError("pass --mean and --std in the order that --channel-order names, and without --normalize")
        if order is None:
            return None
        if args.normalize:
            return Normalization.usual(order, args.normalize)
        if own is not None:
            step = 1 if own.order == order else -1
            own = Normalization(order, own.mean[::step], own.std[::step], own.name)
        if not args.mean and not args.std:
            return own
        mean, std = args.mean or (own and own.mean), args.std or (own and own.std)
        if not mean or not std:
            raise ScriptError("--mean and --std belong together; pass both")
        return Normalization(order, tuple(mean), tuple(std))

    def _given_resizing(self) -> Preprocessing:
        """Read the resizing from flags and weights, with defaults for the rest."""
        resize: Resize = self._known("resize") or "crop"
        ratio = self._known("crop_ratio") or (CROP_RATIO if resize == "crop" else 1.0)
        border = self._known("border") or (0, 0, 0)
        return Preprocessing(self._size, ratio, resize, self._known("interpolation") or "area", tuple(border))

    def _is_resizing_given(self) -> bool:
        return bool(self._known("resize") or self._known("crop_ratio"))

    def _decide_resizing(self) -> str:
        if self._is_resizing_given():
            is_by_flags = bool(self._args.crop_ratio or self._args.resize)
            doubt = "" if is_by_flags or self._measured is None else self._measured.doubt_resizing()
            return self._by("resize", is_by_flags, "as the weights were measured") + doubt
        if self._measured is None:
            return f"as for ImageNet; not measured: {self._unusable} (--resize and --crop-ratio say it)"
        self._resizing, reason = self._measured.resize()
        return (
            reason
            if self._known("interpolation")
            else f"{reason}; interpolation not measured (--interpolation says it)"
        )
