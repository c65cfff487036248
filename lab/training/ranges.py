"""Stores the ranges of activations that NNCF measured, so that int8 networks are built without it: prepare/ranges.json.

    ensemble prepare efficientnet-lite0 --repository /tmp/float
    python -m lab.training.ranges efficientnet-lite0 /tmp/float IMAGES

Every second image, sorted by name, is calibrated on; the others judge: they give the accuracy that is stored.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov

from deployments.contract.payload import Pixels
from deployments.repository.network import load
from deployments.repository.repository import find
from ensemble_models.dataset import decode_all
from ensemble_models.int8 import FIRST, Recipe, to_int8
from ensemble_models.prediction import network_probabilities, preprocessing
from ensemble_models.prepare import efficientnet, stored_int8
from ensemble_models.prepare.stored_int8 import Stored

RECIPE = Recipe("performance", left_out="first layers")


def ranges(network: ov.Model, like: ov.Model) -> list[tuple[float, float]]:
    """Read the ranges from NNCF's network, in the order in which `like`, the float one, reads the activations."""
    found = {}
    for node in network.get_ordered_ops():
        if node.get_type_name() == "FakeQuantize":
            low, high = (node.input_value(port).get_node().data for port in (1, 2))
            found[node.input_value(0).get_node().get_friendly_name()] = float(low.min()), float(high.max())
    readers = stored_int8._read_activations(like, FIRST)
    names = dict.fromkeys(each.get_source_output().get_node().get_friendly_name() for each in readers)
    return [tuple(float(f"{value:.6g}") for value in found[name]) for name in names]  # type: ignore[misc]


def measure(name: str, repository: Path, images: Path) -> Stored:
    """Quantize with NNCF, and store the ranges; print how the network that they give compares."""
    model = find(repository, name, 1)
    paths = sorted(path for path in images.iterdir() if path.is_file())
    encoded = [path.read_bytes() for path in paths]
    pixels: Pixels = decode_all([path.name for path in paths], encoded, preprocessing(model))
    by_nncf = to_int8(load(model), pixels[::2], RECIPE)
    made = Stored(FIRST, ranges(by_nncf, load(model)), {}, "")
    built = rebuilt(model, made)
    networks = {"float": load(model), "NNCF": by_nncf, "ranges": built}
    answers = {kind: network_probabilities(each, pixels[1::2]).argmax(1) for kind, each in networks.items()}
    truth = _truth(paths[1::2])
    right = {kind: each == truth for kind, each in answers.items()}
    for kind, each in right.items():
        only, others = int((each & ~right["float"]).sum()), int((right["float"] & ~each).sum())
        print(f"{name} {kind}: {each.sum()} of {len(each)} right; only this: {only}, only float: {others}")
    made.accuracy = {"top1": 100 * float(right["ranges"].mean()), "source_top1": 100 * float(right["float"].mean())}
    made.accuracy |= {"images": len(truth), "nncf_top1": 100 * float(right["NNCF"].mean())}
    return made


def rebuilt(model: Any, made: Stored) -> ov.Model:
    """Build the network, and note its digest."""
    try:
        return stored_int8.build(load(model), made)
    except Exception as err:
        made.sha256 = str(err).split("SHA-256 ")[1].split(",")[0]
        return stored_int8.build(load(model), made)


def _truth(paths: list[Path]) -> np.ndarray[Any, Any]:
    """Return the classes of images whose names begin with a WordNet id."""
    file = efficientnet._folder(efficientnet.CLASSES, "the classes") / "imagenet21k_to_1k.json"
    classes: dict[str, int] = msgspec.json.decode(file.read_bytes())
    return np.array([classes[path.name.split("_")[0]] for path in paths])


if __name__ == "__main__":
    target = Path(stored_int8.__file__).with_name(stored_int8.FILE)
    content = msgspec.json.decode(target.read_bytes(), type=dict[str, Stored]) if target.exists() else {}
    content[sys.argv[1]] = measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    lines = (f'"{name}": {msgspec.json.encode(each).decode()}' for name, each in sorted(content.items()))
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
