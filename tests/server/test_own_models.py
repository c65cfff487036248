"""Models of a user's own, by the commands that the docs name: ONNX classifiers of all layouts, orders and scales."""

import io
import re
import subprocess
import sys
import zipfile
from itertools import product
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from PIL import Image

from ensemble_models.prepare.source import Normalization
from tests.server.server import Server, eventually, post

ENSEMBLE = Path(sys.executable).with_name("ensemble")
COLOURS = {
    "coal": (20, 20, 25), "lake": (30, 90, 200), "meadow": (60, 160, 50), "poppy": (210, 40, 40),
    "sand": (220, 190, 120), "slate": (100, 105, 110), "snow": (245, 245, 250),
}  # fmt: skip
IMAGE = (16, 24)
WAYS = list(product(("NCHW", "NHWC"), ("RGB", "BGR"), ("imagenet", "unit", "symmetric")))


class Drawn:
    """A classifier by an image's mean colour, as ONNX, and how its owner calls it."""

    def __init__(self, number, layout, order, scale, noise):
        self.layout, self.way = layout, Normalization.usual(order, scale)
        self.size = IMAGE if noise.random() < 0.5 else (8, 12)
        colours = np.array(list(COLOURS.values()), np.float64)[:, :: 1 if order == "RGB" else -1] / 255
        wanted = ((colours - self.way.mean) / self.way.std + noise.normal(0, 0.05, (len(COLOURS), 3))).astype(
            np.float32
        )
        # The nearest colour's is the largest: -4 |x - w|^2 without what all of them share.
        weights = {"w": 8 * wanted.T, "b": -4 * (wanted**2).sum(axis=1)}
        axes, sides = ([2, 3], [3, *self.size]) if layout == "NCHW" else ([1, 2], [*self.size, 3])
        nodes = [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=axes, keepdims=0),
            helper.make_node("Gemm", ["mean", "w", "b"], ["logits"]),
            *([helper.make_node("Softmax", ["logits"], ["scores"])] if noise.random() < 0.5 else []),
        ]
        batch = "N" if noise.random() < 0.5 else 1
        graph = helper.make_graph(
            nodes,
            f"drawn-{number}",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, *sides])],
            [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [batch, len(COLOURS)])],
            [numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()],
        )
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)

    def answers(self, images):
        """The classes' names, by ONNX's own interpreter on Pillow's pixels."""
        run, names, answers = ReferenceEvaluator(self.model), list(COLOURS), []
        for image in images:
            pixels = np.asarray(Image.open(io.BytesIO(image)).resize(self.size[::-1], Image.Resampling.BOX))
            pixels = pixels[..., :: 1 if self.way.order == "RGB" else -1] / 255
            pixels = ((pixels - self.way.mean) / self.way.std).astype(np.float32)
            batch = (pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels)[None]
            answers.append(names[int(run.run(None, {"image": batch})[0].argmax())])
        return answers


def drawn_images(seed, count):
    """Noisy pictures of each class's colour: some are nearer to another's."""
    noise = np.random.default_rng(seed)
    for label, colour in COLOURS.items():
        for number in range(count):
            shade = np.array(colour) + noise.normal(0, 30, 3) + noise.normal(0, 20, (*IMAGE, 3))
            stream = io.BytesIO()
            Image.fromarray(shade.clip(0, 255).astype(np.uint8)).save(stream, "PNG")
            yield f"{label}/{number}.png", stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a user has: models, labelled images, and what `ensemble init` makes of them."""
    folder, noise = tmp_path_factory.mktemp("own"), np.random.default_rng(31)
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name, encoded in drawn_images(1, 20):
            archive.writestr(name, encoded)
    models = {f"m{number}": Drawn(number, *way, noise) for number, way in enumerate(WAYS)}
    for name, drawn in models.items():
        onnx.save(drawn.model, folder / f"{name}.onnx")
    command = [ENSEMBLE, "init", "my.yaml", "--data", "images.zip", "--members", *(f"{name}.onnx" for name in models)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "wrote my.yaml, with 7 classes\n" in done.stdout
    assert "serve it: ensemble serve my.yaml\n" in done.stdout
    return folder, models


@pytest.fixture(scope="module")
def server(folder):
    path, _ = folder
    content = yaml.safe_load((path / "my.yaml").read_text())
    # The file that is served is elsewhere.
    content["applications"][0]["args"]["model_repository"] = str(path / "models")
    with Server(content, folder=path) as running:
        yield running


def test_each_is_served_with_the_accuracy_that_it_has_outside(folder, server):
    images = list(drawn_images(2, 12))
    labels, encoded = [name.split("/")[0] for name, _ in images], [image for _, image in images]
    votes = [post(server, image, content_type="image/png", members="true").json()["members"] for image in encoded]
    for name, drawn in folder[1].items():
        outside = drawn.answers(encoded)
        served = [vote[name]["label"] for vote in votes]
        right = [np.mean([a == b for a, b in zip(answers, labels, strict=True)]) for answers in (outside, served)]
        same = np.mean([a == b for a, b in zip(outside, served, strict=True)])
        assert right[0] > 0.7, (name, right)
        assert abs(right[0] - right[1]) < 0.03, (name, right)
        assert same > 0.95, (name, same)


def test_a_change_is_deployed_or_refused_and_whoever_sent_it_is_told(server, folder, tmp_path):
    def deploy(**options):
        server.content["applications"][0]["deployments"] = [{"name": "Ingress"} | options]
        (tmp_path / "changed.yaml").write_text(yaml.safe_dump(server.content))
        command = [ENSEMBLE, "deploy", tmp_path / "changed.yaml"]
        return subprocess.run(command, env=server.environment, capture_output=True, text=True)

    done = deploy(user_config={"nodes": {"Labeler": {"top_k": 2}}})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'changed.yaml'} is in force.\n"), done.stderr
    assert f"deploying to the server of process {server.process.pid}, started in " in done.stderr
    image = next(drawn_images(3, 1))[1]
    assert len(post(server, image, content_type="image/png").json()["top"]) == 2
    done = deploy(user_config={"nodes": {"Combiner": {"weights": {"m0": 2, "sahre": 1}}}})
    refused = "user_config refused, the previous settings stay in force: "
    assert done.returncode == 1
    assert f"\nerror: {refused}" in done.stderr
    assert "'sahre'" in done.stderr
    assert eventually(lambda: re.search(rf"^error: ensemble_Ingress \w+: {refused}", server.log(), re.M))
    assert server.log().count("'sahre'") == 1
    # What can be known beforehand is not sent.
    assert "deployments.0.num_replica: unknown field; did you mean 'num_replicas'?" in deploy(num_replica=2).stderr
    assert "called 'Ingres'; did you mean 'Ingress'?" in deploy(name="Ingres").stderr
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
