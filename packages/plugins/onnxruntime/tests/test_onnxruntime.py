import asyncio
import os
import sys
import time

import numpy as np
import pytest

from deployments.contract.errors import ConfigurationError, InferenceFailed
from deployments.contract.item import Item
from deployments.contract.member import MemberInterface
from deployments.contract.preprocessing import Preprocessing
from deployments.members import local
from deployments.members.openvino import OpenVino
from deployments.members.versioned import VersionSettings
from ensemble_features.canary.section import CanarySection
from ensemble_interop.remote.tensors import TensorSettings
from ensemble_models.writing import write_metadata
from ensemble_onnxruntime.member import OnnxRuntime
from tests.batches import batch, errors, notes
from tests.networks import brightness, store
from tests.onnx_models import CLASSES, MEAN, SCALE, SIZE, classifier
from tests.server.server import eventually

INTERFACE = MemberInterface(Preprocessing((SIZE, SIZE), 0.875), CLASSES)
PIXELS = np.random.default_rng(7).integers(0, 256, (5, SIZE, SIZE, 3), np.uint8)
# What the file of a model of normalized pixels does not hold.
NORMALIZED = {"color": "RGB", "mean": MEAN, "scale": SCALE}


def put(repository, version=1, metadata=None, **model):
    """Write a version of model `m`."""
    folder = classifier(repository / "m" / str(version) / "model.onnx", **model).parent
    if metadata is not None:
        write_metadata(folder, metadata)
    return folder


def member(kind=OnnxRuntime, **config):
    named = {"kind": "onnxruntime"} if kind is OnnxRuntime else {}
    return kind(name="m", threads=1, **named, **config)


def start(repository, config):
    """What an application does: compare the members' signatures, and then load them."""
    config.signature(repository)
    load(repository, config)


def load(repository, config=None, max_batch_size=8):
    return (config or member()).make(repository, INTERFACE, max_batch_size)


async def scores(node, pixels=PIXELS):
    answer = await node(batch(pixels))
    assert not errors(answer)
    return answer.payload


async def test_the_probabilities_are_openvinos_for_the_same_file(tmp_path):
    put(tmp_path)
    (tmp_path / "m" / "1" / "labels.txt").write_text("\n".join(CLASSES))
    answers = [await scores(load(tmp_path, member(kind))) for kind in (OnnxRuntime, OpenVino)]
    assert answers[0].dtype == np.float32
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-3)
    np.testing.assert_allclose(answers[0].sum(axis=1), 1, atol=1e-5)
    # They differ from image to image, or any two models would agree.
    assert np.ptp(answers[0], axis=0).max() > 0.1
    signatures = [member(kind).signature(tmp_path) for kind in (OnnxRuntime, OpenVino)]
    assert signatures[0] == signatures[1]
    assert (signatures[0].labels, signatures[0].size) == (CLASSES, (SIZE, SIZE))


@pytest.mark.parametrize("where", ["configuration", "metadata"])
@pytest.mark.parametrize("batch_size", ["N", 2])
@pytest.mark.parametrize("softmax", [True, False])
async def test_a_model_of_normalized_pixels_answers_what_the_prepared_one_does(tmp_path, where, batch_size, softmax):
    put(tmp_path)
    expected = await scores(load(tmp_path))
    own = {} if softmax else {"scores": "logits"}
    metadata = {"classes": CLASSES, "input": {**NORMALIZED, "crop_ratio": 0.875}}
    put(tmp_path, 2, metadata if where == "metadata" else None, prepared=False, batch=batch_size, softmax=softmax)
    config = member(version=2, **own, **(NORMALIZED if where == "configuration" else {}))
    np.testing.assert_allclose(await scores(load(tmp_path, config)), expected, atol=1e-4)
    assert config.signature(tmp_path).crop_ratio == (0.875 if where == "metadata" else None)


WRONG = {
    "unknown normalization": ({"prepared": False}, {}, "set `color`, `mean`, `scale`"),
    "part of the normalization": ({"prepared": False}, {"mean": MEAN, "color": "BGR"}, "set `scale`"),
    "normalization of prepared pixels": ({}, NORMALIZED, "remove `mean` and `scale`"),
    "logits": ({"softmax": False}, {}, "set `scores: logits`"),
    "probabilities": ({}, {"scores": "logits"}, "set `scores: probabilities`"),
    "several inputs": ({"inputs": 2}, {"input": "image"}, "2 inputs"),
    "which input": ({"inputs": 2}, {}, "name the right one by `input`"),
    "another output": ({}, {"output": "embedding"}, "no output 'embedding'"),
    "layout": ({"prepared": False}, {**NORMALIZED, "layout": "NHWC"}, "does not have three channels"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_would_be_silently_wrong_is_refused(tmp_path, case):
    model, settings, message = WRONG[case]
    put(tmp_path, **model)
    with pytest.raises(ConfigurationError, match=f"members: 'm'.*{message}"):
        start(tmp_path, member(**settings))


def test_a_model_of_free_sizes_takes_what_the_others_take(tmp_path):
    put(tmp_path, size="edge")
    assert member().signature(tmp_path).size is None
    load(tmp_path)
    with pytest.raises(ConfigurationError, match="10 classes; the ensemble has 4"):
        member().make(tmp_path, MemberInterface(Preprocessing((SIZE, SIZE)), CLASSES[:4]), 8)


def test_files_that_are_no_such_model_are_refused(tmp_path):
    store(tmp_path, "m", brightness())
    with pytest.raises(ConfigurationError, match="no ONNX model; remove `kind: onnxruntime`"):
        member().signature(tmp_path)
    folder = put(tmp_path, 2, {"classes": CLASSES})
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ConfigurationError, match="SHA-256"):
        member().signature(tmp_path)
    (folder / "metadata.json").unlink()
    with pytest.raises(ConfigurationError, match="ONNX Runtime can't load"):
        member().signature(tmp_path)


def test_without_onnxruntime_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    put(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigurationError, match="pip install onnxruntime"):
        member().signature(tmp_path)


def threads():
    return len(os.listdir("/proc/self/task"))


def test_the_session_has_as_many_threads_as_configured(tmp_path):
    put(tmp_path)
    before, kept = threads(), []
    for count in (1, 4):
        config = member().model_copy(update={"threads": count})
        kept.append(config.session(config.find(tmp_path)))
        # The thread that calls it is one of them.
        assert threads() - before == count - 1


async def test_versions_are_served_swapped_and_refused_as_for_openvino(tmp_path):
    put(tmp_path, 1, seed=1)
    node = load(tmp_path)
    first = await scores(node)
    assert (await node(batch(PIXELS))).items[0].versions == {"m": 1}
    put(tmp_path, 2, seed=2)
    put(tmp_path, 3, softmax=False)
    node.settings = VersionSettings(version=2)
    assert await asyncio.to_thread(eventually, lambda: node.version == 2)
    assert not np.allclose(await scores(node), first, atol=1e-3)
    node.settings = VersionSettings(version=3)
    assert await asyncio.to_thread(eventually, lambda: node.refused == 1)
    assert (await node(batch(PIXELS))).items[0].versions == {"m": 2}
    latest = load(tmp_path, member(version_policy="latest"))
    assert latest.version == 2


async def test_a_failure_is_the_images_and_then_the_healths(tmp_path, monkeypatch):
    put(tmp_path)
    node = load(tmp_path)
    loaded = node._serving.loaded

    class Broken:
        def run(self, outputs, inputs):
            raise RuntimeError("broken")

    monkeypatch.setattr(loaded, "_session", Broken())
    for _ in range(local.UNHEALTHY_AFTER):
        node.check_health()
        answer = await node(batch(PIXELS))
        assert {type(error) for error in errors(answer).values()} == {InferenceFailed}
        assert len(errors(answer)) == len(PIXELS)
    with pytest.raises(RuntimeError, match="3 times in a row"):
        node.check_health()
    monkeypatch.undo()
    answer = await node(batch(PIXELS))
    node.check_health()
    attributes = notes(answer)[0].attributes
    assert attributes.keys() >= {"ensemble.queue_wait_ms", "ensemble.inference_ms", "ensemble.model.version"}
    assert (await node(batch(PIXELS[:0]))).items == ()
    monkeypatch.setattr(local, "HUNG_AFTER_S", 0)
    with loaded.health.inference(), pytest.raises(RuntimeError, match="has not ended"):
        node.check_health()


async def test_batches_that_wait_for_each_other_have_the_cpu_time_of_their_own_inference(tmp_path, monkeypatch):
    put(tmp_path)
    node = load(tmp_path)
    session, busy_s = node._serving.loaded._session, iter((0.02, 0.1, 0.02))

    class Busy:
        def run(self, outputs, inputs):
            until = time.thread_time() + next(busy_s)
            while time.thread_time() < until:
                pass
            return session.run(outputs, inputs)

    monkeypatch.setattr(node._serving.loaded, "_session", Busy())
    before = time.process_time()
    answers = await asyncio.gather(*(node(batch(PIXELS, *[Item(metered=True)] * len(PIXELS))) for _ in range(3)))
    used_ms = (time.process_time() - before) * 1000
    cpu_ms = [notes(answer)[0].attributes["ensemble.cpu_ms"] for answer in answers]
    assert sum(cpu_ms) == pytest.approx(used_ms, rel=0.1)
    assert cpu_ms[0] >= 20
    assert cpu_ms[1] >= 100
    assert cpu_ms[2] >= 20


async def test_an_image_of_no_numbers_fails_alone(tmp_path, monkeypatch):
    put(tmp_path)
    node = load(tmp_path)
    session = node._serving.loaded._session

    class Infinite:
        def run(self, outputs, inputs):
            [values] = session.run(outputs, inputs)
            values[1] = np.inf
            return [values]

    monkeypatch.setattr(node._serving.loaded, "_session", Infinite())
    answer = await node(batch(PIXELS))
    assert list(errors(answer)) == [1]
    assert answer.payload.shape == (4, 10)


def test_a_canary_leaves_open_what_its_member_leaves_open():
    """Its metadata, too, say what pixels it takes."""
    stable = member(color="RGB", canary={"version": 2, "share": 0.1})
    [canary] = stable.of(CanarySection).beside(stable)
    assert canary.name == "m-canary"
    assert canary.color == "RGB"
    assert canary.model_fields_set & set(TensorSettings.model_fields) == {"color"}


def test_what_decides_scores_is_in_the_identity(tmp_path):
    put(tmp_path)
    put(tmp_path, 2, seed=1)
    configs = [member(), member(version=1), member(color="RGB"), member(color="BGR"), member(scores="logits")]
    identities = [config.identity(tmp_path) for config in configs]
    assert len(set(identities)) == len(configs)
    assert identities[0] == member().model_copy(update={"threads": 8}).identity(tmp_path)
