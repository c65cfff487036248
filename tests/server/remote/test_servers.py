"""A remote member asks real model servers: it answers what the local one does."""

from types import SimpleNamespace

import numpy as np
import pytest

from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from deployments.contract.member import MemberInterface
from deployments.contract.preprocessing import AsSent, Preprocessing
from deployments.members.openvino import OpenVino
from deployments.repository.repository import DEFAULT_ROOT
from ensemble_capacity.load import __main__ as load
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.measure import Duration, measure
from ensemble_interop.remote.open_inference import OpenInference
from ensemble_interop.tensorflow_serving.member import TensorFlowServing
from ensemble_models.dataset import decode
from tests import pictures
from tests.batches import batch, errors, notes
from tests.conftest import ROOT
from tests.server.remote.peers import peer

WANTED = Preprocessing((32, 32))
NORMALIZED = {"mean": (125, 123, 114), "scale": (63, 62, 66), "color": "RGB", "scores": "logits"}
CAT = (ROOT / "tests" / "cat.jpg").read_bytes()
IMAGES = [CAT, *(pictures.jpeg(32, 32, seed) for seed in range(4))]
LABELS = OpenVino(name="resnet", kind="openvino").signature(DEFAULT_ROOT).labels


@pytest.fixture(scope="module")
def pixels():
    return np.stack([decode(str(i), image, [WANTED])[0] for i, image in enumerate(IMAGES)])


@pytest.fixture(scope="module", params=["mlserver", "kserve", "triton"])
def server(request, tmp_path_factory):
    models = () if request.param == "triton" else ("resnet",)
    with peer(request.param, tmp_path_factory.mktemp("peer"), *models) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def member(request, server):
    """A member of the server, and its signature."""
    how = NORMALIZED if server.name == "kserve" else {}
    config = OpenInference(name="resnet", kind="open_inference", url=server.url(request.param), **how)
    return config, config.signature(DEFAULT_ROOT)


async def local(pixels):
    config = OpenVino(name="resnet", threads=1)
    return (await config.make(DEFAULT_ROOT, MemberInterface(WANTED, LABELS), 8)(batch(pixels))).payload


async def test_the_answers_are_the_local_ones(member, server, pixels):
    config, told = member
    assert (told.size, told.classes, told.as_sent) == ((32, 32), 10, False)
    node = config.make(DEFAULT_ROOT, MemberInterface(WANTED, LABELS), 8)
    sampled = Item(trace_parent=f"00-{'a' * 32}-{'b' * 16}-01")
    answer = await node(batch(pixels, *[sampled] * len(pixels)))
    assert not errors(answer)
    np.testing.assert_allclose(answer.payload, await local(pixels), atol=2e-3)
    assert LABELS[answer.payload[0].argmax()] == "cat"
    version = {"mlserver": "7", "triton": "3"}.get(server.name, "unknown")
    assert [item.versions for item in answer.items] == [{"resnet": version}] * len(pixels)
    [note] = notes(answer)
    assert note.attributes["ensemble.model.version"] == version
    assert len(note.span) == 16


@pytest.mark.parametrize("server", ["triton"], indirect=True)
@pytest.mark.parametrize("way", ["http", "grpc"])
async def test_a_server_that_decodes_gets_the_images_as_they_were_sent(server, way, pixels):
    config = OpenInference(name="resnet", kind="open_inference", url=server.url(way), model="encoded")
    assert config.signature(DEFAULT_ROOT).as_sent
    # The cat is of another size, which a model that resizes nothing does not take.
    answer = await config.make(DEFAULT_ROOT, MemberInterface(AsSent(), LABELS), 8)(batch(IMAGES[1:]))
    np.testing.assert_allclose(answer.payload, await local(pixels[1:]), atol=0.02)


def test_what_does_not_fit_is_told_at_the_start(member):
    config, _ = member
    for wrong in ({"size": (48, 48)}, {"input": "pixels"}, {"output": "embedding"}, {"as_sent": True}):
        with pytest.raises(ConfigurationError, match="members: 'resnet'"):
            config.model_copy(update=wrong).signature(DEFAULT_ROOT)
    with pytest.raises(ConfigurationError, match="its model has 10 classes, but 2 labels are expected"):
        config.model_copy(update={"labels": ("a", "b")}).signature(DEFAULT_ROOT)


@pytest.mark.parametrize("server", ["tensorflow"], indirect=True)
@pytest.mark.parametrize("way", ["http", "grpc"])
async def test_tensorflow_servings_messages(server, way, pixels):
    config = TensorFlowServing(name="resnet", kind="tensorflow_serving", url=server.url(way))
    told = config.signature(DEFAULT_ROOT)
    assert (told.size, told.classes, told.version) == ((32, 32), 10, "5")
    answer = await config.make(DEFAULT_ROOT, MemberInterface(WANTED, LABELS), 8)(batch(pixels))
    np.testing.assert_allclose(answer.payload, await local(pixels), atol=2e-3)
    assert answer.items[0].versions == {"resnet": "5"}
    for wrong in ({"signature_name": "other"}, {"output": "classes"}, {"size": (48, 48)}):
        with pytest.raises(ConfigurationError, match="members: 'resnet'"):
            config.model_copy(update=wrong).signature(DEFAULT_ROOT)


@pytest.mark.parametrize("server", ["kserve"], indirect=True)
async def test_kserves_server_as_one_of_tensorflows_which_tells_no_metadata(server, pixels):
    how = {**NORMALIZED, "datatype": "FP32", "layout": "NCHW", "size": (32, 32), "labels": LABELS}
    config = TensorFlowServing(name="resnet", kind="tensorflow_serving", url=server.url("http"), **how)
    told = config.signature(DEFAULT_ROOT)
    assert (told.size, told.classes, told.as_sent) == ((32, 32), 10, False)
    answer = await config.make(DEFAULT_ROOT, MemberInterface(WANTED, LABELS), 8)(batch(pixels))
    np.testing.assert_allclose(answer.payload, await local(pixels), atol=2e-3)
    assert answer.items[0].versions == {"resnet": "unknown"}


def loaded(url, *given):
    """The row that `ensemble load` measures."""
    target = load.described(load.target_of(SimpleNamespace(**load.main.make_context("load", [url, *given]).params)))
    return measure(target, Closed(2), Duration(0.2, 0.5))


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_it_is_loaded_as_ours_is(server, way):
    row = loaded(server.url(way), "--model", "resnet", "--protocol", "open-inference", "--batch", "3")
    assert (row.failed, row.batch) == (0, 3)
    assert row.requests > 2


@pytest.mark.parametrize("server", ["tensorflow"], indirect=True)
@pytest.mark.parametrize("way", ["http", "grpc"])
def test_a_server_with_tensorflow_servings_api_is_loaded_as_ours_is(server, way):
    row = loaded(server.url(way), "--model", "resnet", "--protocol", "tensorflow-serving", "--batch", "3")
    assert row.failed == 0
    assert row.requests > 2
