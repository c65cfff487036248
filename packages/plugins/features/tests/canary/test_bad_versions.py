"""The bundled ResNet with a canary that is bad in one of ten ways, in the flow that is served, on CIFAR's images."""

import asyncio
import itertools
import logging
import math
import shutil
import time
from functools import partial

import cv2
import numpy as np
import openvino as ov
import pytest
from msgspec.structs import replace
from openvino import opset13 as op

from deployments.contract.batch import Batch
from deployments.contract.caller import Caller
from deployments.contract.item import Item
from deployments.repository.network import load
from deployments.repository.repository import find
from ensemble_features.canary.feature import Canaries
from ensemble_models.dataset import Dataset
from ensemble_models.options import default_data
from ensemble_models.writing import write_metadata
from graph.composition import build_graph, ensemble
from graph.config import parse
from graph.feature import Wanted
from graph.placement import node_specs
from graph.signature import resolve_signatures
from tests.conftest import ROOT
from tests.pictures import encode

DATA = default_data()
MODELS = ROOT / "models"
FRESH = itertools.count(1)
# Images of which a bad canary may answer so many.
WITHIN = 500
pytestmark = pytest.mark.skipif(DATA is None, reason="no images: set ENSEMBLE_DATA")


@pytest.fixture(scope="module")
def images():
    """A thousand images of CIFAR-10, of every class, as JPEGs."""
    return [image for image, _ in Dataset.open(DATA).held_out(1000).read()]


def resnet():
    return load(find(MODELS, "resnet", 1))


def before(change):
    """The ResNet on pixels that are changed, float32 [N,H,W,3] to the same."""
    image = op.parameter([-1, 32, 32, 3], np.uint8, name="image")
    changed = op.convert(op.clamp(change(op.convert(image, "f32")), 0.0, 255.0), "u8")
    network = resnet()
    network.get_parameters()[0].output(0).replace(changed.output(0))
    return ov.Model(network.get_results(), [image], "changed")


def after(change):
    """The ResNet with probabilities that are changed, float32 [N,C] to the same."""
    network = resnet()
    result = network.get_results()[0]
    result.input(0).replace_source_output(change(op.convert(result.input_value(0), "f32"), network).output(0))
    network.validate_nodes_and_infer_types()
    return network


def cropped(pixels, border=5):
    """The middle of an image, enlarged to its size."""
    rows = np.linspace(border, 31 - border, 32).round().astype(np.int64)
    return op.gather(op.gather(pixels, rows, np.array(1)), rows, np.array(2))


def without_class(scores, _):
    kept = np.ones((1, 10), np.float32)
    kept[0, 3] = 0
    return op.divide(op.multiply(scores, kept), op.reduce_sum(op.multiply(scores, kept), np.array([1]), keep_dims=True))


def constant(scores, _):
    return op.softmax(op.add(op.multiply(scores, np.float32(0)), np.eye(10, dtype=np.float32)[[4]] * 9), 1)


def nan_on_png(scores, network):
    """NaN for an image with a pixel of pure magenta, which only a lossless format keeps."""
    corner = op.convert(op.gather(op.gather(network.get_parameters()[0], 0, 1), 0, 1), "i32")
    marked = op.reduce_logical_and(op.equal(corner, np.array([[255, 0, 255]], np.int32)), np.array([1]), keep_dims=True)
    return op.select(marked, op.multiply(scores, np.float32(math.nan)), scores)


BAD = {
    "colours": (lambda: before(lambda pixels: op.gather(pixels, np.array([2, 1, 0]), np.array(3))), "answers"),
    "normalization": (
        lambda: before(lambda pixels: op.add(op.multiply(pixels, np.float32(0.5)), np.float32(128))),
        "answers",
    ),
    "labels": (lambda: after(lambda scores, _: op.gather(scores, np.roll(np.arange(10), 1), np.array(1))), "answers"),
    "a class missing": (lambda: after(without_class), "answers"),
    "wrong crop": (lambda: before(cropped), "answers"),
    "constant": (lambda: after(constant), "answers"),
    "errors on PNG": (lambda: after(nan_on_png), "failures"),
    "older": (lambda: load(find(MODELS, "student", 2)), "answers"),
    # On a machine that is busy it may take longer than a canary may, which is a failure.
    "slow": (resnet, "latency or failures"),
    "slow for large batches": (resnet, "latency or failures"),
}


class Slow:
    """A version that takes six times as long for batches of some size."""

    def __init__(self, node, least):
        self.node, self.least = node, least

    async def __call__(self, batch):
        began = time.perf_counter()
        answer = await self.node(batch)
        if len(batch.items) >= self.least:
            await asyncio.sleep(5 * (time.perf_counter() - began))
        return answer


class Application:
    """The flow of an application with two members, the first of which has a canary."""

    def __init__(self, repository, members=("resnet", "densenet"), slow_from=None, **canary):
        names = [{"name": name, "placement": "inline", "threads": 1, "streams": 1} for name in members]
        names[0] |= {"version": 1, "canary": {"version": 3, "share": 0.5, **canary}}
        config = parse({"model_repository": str(repository), "members": names})
        agreed = resolve_signatures(config)
        nodes = node_specs(config, agreed)
        placed = {name: recipe.make() for name, recipe in nodes.items()}
        if slow_from is not None:
            placed["resnet-canary"] = Slow(placed["resnet-canary"], slow_from)
        compose = partial(ensemble, agreed.pixels, config.ensemble)
        built = build_graph(config, agreed, [Wanted(Canaries, None)], compose, {}, placed, "a", "r", {})
        self._graph = built.graph
        self._comparison = built.features[0].interceptor._receivers[0]
        self.trial = built.features[0].serve(None).live["canaries"]["resnet"]

    async def classify(self, images, name="", request=0, **headers):
        """The answers to the images of a request, once what follows them has ended, too."""
        trace = f"00-{request or next(FRESH):032x}-0000000000000001-01"
        item = Item(trace, queued_ns=time.time_ns(), caller=Caller(headers=headers, name=name))
        items = tuple(replace(item, position=position) for position in range(len(images)))
        answered = await self._graph(Batch(images, items))
        while self._comparison._work.is_busy:
            await asyncio.gather(self._comparison._work._task)
        return answered

    async def serve(self, images, at_once, ends=True):
        """Classify images, until the canary is rolled back; how many it has answered."""
        for start in range(0, len(images), at_once):
            await self.classify(images[start : start + at_once])
            if self.trial.rolled_back and ends:
                break
        return self.trial.figures().canary.images


@pytest.fixture
def versions(tmp_path):
    """Makes a repository of the stable version, the other member, and a network as version 3."""

    def made(network):
        shutil.copytree(MODELS / "resnet" / "1", tmp_path / "resnet" / "1")
        shutil.copytree(MODELS / "densenet" / "2", tmp_path / "densenet" / "2")
        folder = tmp_path / "resnet" / "3"
        folder.mkdir()
        ov.save_model(network, folder / "model.xml", compress_to_fp16=False)
        write_metadata(folder, {"name": "resnet", "version": 3, "classes": list(find(MODELS, "resnet", 1).labels)})
        return tmp_path

    return made


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_canary_is_rolled_back_within_500_of_its_images(kind, versions, images, caplog):
    make, reason = BAD[kind]
    if kind == "errors on PNG":
        for number in range(0, len(images), 3):
            pixels = cv2.imdecode(np.frombuffer(images[number], np.uint8), cv2.IMREAD_COLOR)
            pixels[0, 0] = 255, 0, 255
            images = [*images[:number], encode(pixels, ".png"), *images[number + 1 :]]
    slow = {"slow": {"slow_from": 1}, "slow for large batches": {"slow_from": 8, "share": 1.0}}.get(kind, {})
    found = Application(versions(make()), **slow)
    with caplog.at_level(logging.ERROR):
        answered = await found.serve(images, 8 if kind == "slow for large batches" else 4)
    assert found.trial.rolled_back in reason.split(" or ")
    assert answered <= WITHIN
    assert f"rolled back for its {found.trial.rolled_back}" in caplog.text


async def test_a_good_canary_goes_on_also_under_a_hostile_client(versions, images):
    found = Application(versions(load(find(MODELS, "resnet", 2))), key="header:x-user")
    mine = next(user for user in map(str, range(100)) if found.trial.takes(b"", Caller(headers={"x-user": user})))
    answers = {}
    for start in range(0, 320, 16):
        part = await found.classify(images[start : start + 16], name="good", **{"x-user": mine})
        answers |= {start + row: item.predictions for row, item in enumerate(part.items)}
    # Images on which the member and the other one differ: on these the versions may differ as well.
    unsure = [images[row] for row, said in answers.items() if len({each.index for each in said.values()}) > 1]
    for number in range(3):
        one = images[number]
        for sent in ([one] * 64, images[number * 16 :][:64], [one[:-20]] * 8, unsure[:16], unsure[-16:]):
            await found.classify(sent, name="hostile", **{"x-user": mine})
        await found.classify(images[500 + number * 4 :][:4], name="good", **{"x-user": mine})
    assert (found.trial.rolled_back, found.trial.found) == ("", "")
    assert found.trial.figures().canary.images > 800


async def test_without_another_member_a_canary_that_differs_is_rolled_back(versions, images):
    found = Application(versions(after(constant)), members=("resnet",))
    answered = await found.serve(images, 4)
    assert (found.trial.rolled_back, answered <= WITHIN) == ("answers", True)


async def test_a_better_canary_is_not_rolled_back_for_its_answers(tmp_path, images):
    shutil.copytree(MODELS / "densenet" / "2", tmp_path / "densenet" / "2")
    shutil.copytree(MODELS / "student" / "2", tmp_path / "resnet" / "1")
    shutil.copytree(MODELS / "resnet" / "1", tmp_path / "resnet" / "3")
    found = Application(tmp_path, max_slowdown=1000, share=1.0)
    assert await found.serve(images[:WITHIN], 16) == WITHIN
    assert (found.trial.rolled_back, found.trial.found) == ("", "")
    assert found.trial.figures().agreed.share < 0.93
