"""The decisions by which a network becomes a member: size, layout, labels, normalization, resizing, and why each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import openvino as ov

from deployments.contract.preprocessing import Preprocessing, Size
from deployments.repository.layout import layout_of
from deployments.repository.network import class_count
from ensemble_models.baking import Color, bake, check_ends, static_size
from ensemble_models.dataset import Dataset, indices, sample
from ensemble_models.exporters.names import fitting, read_names
from ensemble_models.prediction import answers_probabilities
from ensemble_models.prepare import trials
from ensemble_models.prepare.source import CROP_RATIO, WHITE, Normalization, Source, usual
from ensemble_models.prepare.trials import Trial
from ensemble_models.writing import input_metadata
from scripts.errors import ScriptError

# The options that say a fact which an exporter leaves open, where they have another name.
FLAGS = {
    "order": ("channel_order",),
    "mean": ("mean", "normalize"),
    "std": ("std", "normalize"),
    "resize": ("resize", "crop_ratio"),
}
# Labelled images that the usual ways are tried on.
MOST_TRIED = 500


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
        self._layout = layout_of(shape, args.layout or source.layout)
        size = args.size or source.size or static_size(source.network, self._layout)
        if size is None:
            raise ScriptError(f"{args.source} takes images of any size; say which by --size HEIGHT WIDTH")
        self._size: Size = size
        self._softmax = False
        plain = self.baked(Normalization.usual("RGB", "unit"))
        self._classes = class_count(plain)
        # By what comes out, because a softmax may be made of other operations.
        self._softmax = not answers_probabilities(plain, self._size)
        images = Dataset.open(args.data) if args.data else None
        self._labels, named = self._decide_labels(images)
        self._resizing = self._given_resizing()
        self._trial, self._unusable = self._usable(images)
        self._normalization, normalized = self._decide_normalization()
        resized = self._decide_resizing()
        self.reasons = [
            f"size: {size[0]} x {size[1]} pixels, {self._by('size', args.size, 'as the model fixes it')}",
            f"layout: {self._layout}, {self._by('layout', args.layout, f'by its input {shape}')}",
            f"channels and normalization: {self._normalization.flags}, {normalized}",
            f"resizing: {self._resizing.key}, {resized}",
            f"classes: {self._classes}, {named}",
            f"softmax: {'added to its scores' if self._softmax else 'the model answers probabilities'}",
        ]

    def baked(self, normalization: Normalization | None = None) -> ov.Model:
        """Make the network with the ensemble's signature, with the decided normalization or another one inside."""
        chosen = normalization or self._normalization
        return bake(
            self._source.network.clone(),
            size=self._size,
            mean=[value * WHITE for value in chosen.mean],
            scale=[round(value * WHITE, 6) for value in chosen.std],
            channel_order=chosen.order,
            layout=self._layout,
            softmax=self._softmax,
        )

    def _by(self, fact: str, flag: object, otherwise: str) -> str:
        """Say what a fact was taken from: an option, the place where an exporter states it, or something else."""
        return "by the flags" if flag else f"by {self._source.where[fact]}" if fact in self._source.where else otherwise

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
            "source": {
                "tool": "scripts.prepare",
                **self._source.origin,
                "mean": list(self._normalization.mean),
                "std": list(self._normalization.std),
                "channel_order": self._normalization.order,
                "layout": self._layout,
                **({"stated": dict(self._source.where)} if self._source.where else {}),
                "openvino": ov.__version__,
            },
        }

    def _decide_labels(self, images: Dataset | None) -> tuple[Sequence[str] | None, str]:
        labels, where = self._source.labels, self._source.where.get("labels", "the weights")
        if self._args.labels:
            labels, where = read_names(self._args.labels), str(self._args.labels)
        elif labels is None and images is not None and len(images.classes) == self._classes:
            labels, where = images.classes, f"the folders of {images.path}, in alphabetical order"
        if labels is None:
            return None, "without names: those of the members that it is served with are taken; --labels gives its own"
        labels = fitting(labels, self._classes)
        if len(labels) != self._classes:
            raise ScriptError(
                f"the model has {self._classes} classes, but there are {len(labels)} labels in {where}; name another "
                "file by --labels"
            )
        return labels, f"{', '.join(labels[:3])}{', ...' if len(labels) > 3 else ''}, named by {where}"

    def _usable(self, images: Dataset | None) -> tuple[Trial | None, str]:
        """Find the images that decisions are measured on, or say why there are none."""
        if images is None:
            return None, "there are no labelled images"
        if self._labels is None:
            problem = f"{images.path} has {len(images.classes)} classes, and the model {self._classes}"
            return None, f"{problem}; name the model's by --labels"
        # In any order, because ways are tried on the first ones first.
        some = sample(images, MOST_TRIED)
        some = replace(some, names=tuple(random.Random(0).sample(some.names, len(some))))
        try:
            indices(images, self._labels, f"model {self._args.name!r}")
            labels = indices(some, self._labels, self._args.name)
        except ScriptError as err:
            return None, str(err)
        encoded = [image for image, _ in some.read()]
        ways = [self._resizing] if self._is_resizing_given() else trials.ways(self._resizing, encoded)
        return Trial(some.names, encoded, labels, ways), ""

    def _decide_normalization(self) -> tuple[Normalization, str]:
        given = self._given_normalization()
        is_own = given is not None and given == self._source.normalization
        by = self._by("mean", not is_own, "as the weights were trained")
        if self._trial is None:
            if given is not None:
                return given, f"{by}; not measured: {self._unusable}"
            raise ScriptError(
                f"no file says how its model takes pixels, and {self._unusable}: name labelled images (<class>/*.jpg) "
                "by --data, or say it by --channel-order RGB|BGR and --normalize imagenet|unit|symmetric|none"
            )
        allowed = usual(self._args.channel_order, self._args.normalize) if given is None else [given]
        chosen, self._first = trials.choose_normalization(allowed, self.baked, self._trial, self._trial.ways[0])
        return chosen, f"{by if given else 'the best'} on {len(self._first)} images of {self._args.data}"

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
        args = self._args
        resize = args.resize or self._source.resize or "crop"
        ratio = args.crop_ratio or self._source.crop_ratio or (CROP_RATIO if resize == "crop" else 1.0)
        # Three models of timm, such as volo_d5_512, whose images get a frame.
        if ratio > 1:
            raise ScriptError(f"{args.source} was measured on crops of {ratio:g} of an image; pass --crop-ratio 1")
        return Preprocessing(
            self._size,
            ratio,
            resize,
            args.interpolation or self._source.interpolation or "area",
            tuple(args.border or self._source.border or (0, 0, 0)),
        )

    def _is_resizing_given(self) -> bool:
        by_flags = self._args.crop_ratio or self._args.resize
        return bool(by_flags or self._source.resize or self._source.crop_ratio is not None)

    def _decide_resizing(self) -> str:
        if self._is_resizing_given():
            return self._by("resize", self._args.crop_ratio or self._args.resize, "as the weights were measured")
        if self._trial is None:
            return f"as for ImageNet; not measured: {self._unusable} (--resize and --crop-ratio say it)"
        self._resizing, reason = trials.choose_resizing(self.baked(), self._trial, self._first)
        return reason
