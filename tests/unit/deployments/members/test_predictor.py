import asyncio
import gc
import time
import weakref

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from deployments.contract.errors import ConfigurationError, DeadlineExceeded, InferenceFailed
from deployments.contract.item import Item
from deployments.contract.member import class_order
from deployments.members.openvino import OpenVino
from deployments.members.predictor import Predictor
from deployments.repository.repository import find
from tests import batches
from tests.batches import errors
from tests.networks import brightness, constant, fails_from, heavy, one_hot, store
from tests.pictures import grey


def predictor(repository, name, max_batch_size=4, **config):
    member = OpenVino(name=name, **config)
    return Predictor(member, find(repository, name), (32, 32), max_batch_size)


def pixels(*levels):
    return np.stack([grey(level, 32, 32) for level in levels])


def batch(*levels):
    return batches.batch(pixels(*levels))


@pytest.mark.parametrize("hint", [{"streams": 1}, {"streams": 2, "threads": 2}, {"threads": 1}])
@pytest.mark.parametrize("count", [1, 3, 16])
async def test_rows_stay_in_order_however_they_are_split(repository, hint, count):
    levels = [(37 * i) % 256 for i in range(count)]
    answer = await predictor(repository, "brightness", **hint)(batch(*levels))
    assert answer.payload.argmax(1).tolist() == [level // 32 for level in levels]
    assert answer.payload.dtype == np.float32
    np.testing.assert_allclose(answer.payload.sum(1), 1, rtol=1e-5)
    assert [item.versions for item in answer.items] == [{"brightness": 1}] * count


async def test_pixels_that_cant_be_written_or_have_gaps_are_copied(repository):
    member, wide = predictor(repository, "brightness"), np.repeat(pixels(10, 130), 2, axis=2)
    read_only = pixels(10, 130)
    read_only.flags.writeable = False
    for given in (read_only, wide[:, :, ::2]):
        answer = await member(batches.batch(given))
        assert answer.payload.argmax(1).tolist() == [0, 4]


async def test_logits_get_a_softmax_and_distributions_none(repository):
    answer = await predictor(repository, "one")(batch(0))
    np.testing.assert_allclose(answer.payload[0], one_hot(1), rtol=1e-5)


async def test_many_batches_at_once_are_not_mixed(repository):
    member = predictor(repository, "brightness")
    levels = list(range(2, 256, 4))
    answers = await asyncio.gather(*(member(batch(level)) for level in levels))
    assert [int(answer.payload.argmax()) for answer in answers] == [level // 32 for level in levels]


async def test_the_event_loop_goes_on_while_a_model_computes(tmp_path):
    store(tmp_path, "heavy", heavy())
    member = Predictor(OpenVino(name="heavy"), find(tmp_path, "heavy"), (32, 32), 8)
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count_turns())
    await member(batch(*range(8)))
    counter.cancel()
    assert turns > 20


def test_a_batch_is_not_split_below_the_least_at_once(repository):
    alone, together = (predictor(repository, "brightness", least_at_once=least) for least in (1, 3))
    # As on a machine with four infer requests at a time.
    alone._requests = together._requests = alone._requests[:1] * 4
    counts = (1, 2, 3, 4, 7, 12, 64)
    assert [len(alone._split(range(count))) for count in counts] == [1, 2, 3, 4, 4, 4, 8]
    assert [len(together._split(range(count))) for count in counts] == [1, 1, 1, 1, 2, 4, 8]


async def test_a_cancelled_caller_gives_its_infer_request_back(repository):
    member = predictor(repository, "brightness", streams=1, threads=1)
    for _ in range(20):
        task = asyncio.create_task(member(batch(*range(0, 256, 8))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    answer = await asyncio.wait_for(member(batch(200)), 5)
    assert answer.payload.argmax() == 200 // 32


async def test_expired_requests_are_not_inferred(repository):
    expired = batches.batch(pixels(10, 200), Item(deadline=time.time() - 1), Item())
    answer = await predictor(repository, "brightness")(expired)
    assert answer.payload.argmax(1).tolist() == [200 // 32]
    assert isinstance(errors(answer)[0], DeadlineExceeded)


async def test_a_failed_inference_is_an_error_of_its_requests_and_then_of_its_health(repository):
    member = predictor(repository, "brightness")
    member.health.check()
    wrong = batches.batch(np.zeros((2, 16, 16, 3), np.uint8))
    for _ in range(3):
        answer = await member(wrong)
        assert [type(error) for error in errors(answer).values()] == [InferenceFailed, InferenceFailed]
    # A batch of which nothing is inferred proves nothing.
    await member(batches.batch(pixels(1), Item(deadline=time.time() - 1)))
    with pytest.raises(RuntimeError, match="brightness"):
        member.health.check()
    await member(batch(1))
    member.health.check()


async def test_pixels_that_find_no_memory_keep_no_infer_request(repository, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    member = predictor(repository, "brightness", streams=1)
    with monkeypatch.context() as patch:
        patch.setattr(ov, "Tensor", full)
        assert isinstance(errors(await member(batch(1)))[0], InferenceFailed)
    answer = await asyncio.wait_for(member(batch(200)), 5)
    assert answer.payload.argmax() == 200 // 32


@pytest.fixture
def failing(tmp_path):
    """A member that fails while it runs, on a picture of level 240 or more."""
    store(tmp_path, "fails", fails_from(240), classes=("a", "b", "c"))
    return predictor(tmp_path, "fails", streams=1, threads=1)


async def test_an_inference_that_fails_while_it_runs_is_an_error_at_once_and_the_next_ones_are_not(failing):
    for _ in range(3):
        failed, answered = await asyncio.wait_for(asyncio.gather(failing(batch(1, 255)), failing(batch(1, 2))), 5)
        assert [type(error) for error in errors(failed).values()] == [InferenceFailed, InferenceFailed]
        assert answered.payload.shape == (2, 3)
    for _ in range(3):
        failing.health.check()
        await asyncio.wait_for(failing(batch(255)), 5)
    with pytest.raises(RuntimeError, match="failed 3 times"):
        failing.health.check()
    await asyncio.wait_for(failing(batch(1)), 5)
    failing.health.check()
    assert not failing.health.began


async def test_a_failed_inference_that_nobody_waits_for_gives_its_infer_request_back(failing):
    task = asyncio.create_task(failing(batch(255)))
    while not failing.health.began:
        await asyncio.sleep(0)
    task.cancel()
    answer = await asyncio.wait_for(failing(batch(1)), 5)
    assert answer.payload.shape == (1, 3)


def test_a_failed_inference_is_noticed_in_every_event_loop(failing):
    for _ in range(2):
        asyncio.run(failing(batch(1)))
        answer = asyncio.run(asyncio.wait_for(failing(batch(255)), 5))
        assert isinstance(errors(answer)[0], InferenceFailed)


@pytest.mark.parametrize("hint", [{"threads": 1}, {"threads": 2, "streams": 1}])
def test_a_model_that_fails_while_it_is_tried_is_refused_at_start(tmp_path, hint):
    store(tmp_path, "fails", fails_from(0), classes=("a", "b", "c"))
    with pytest.raises(ConfigurationError, match="does not run on pixels of"):
        predictor(tmp_path, "fails", **hint)


async def test_an_inference_that_never_calls_back_is_an_error_of_its_health(repository, monkeypatch):
    member = predictor(repository, "brightness", streams=1)
    [request] = member._requests
    monkeypatch.setattr(request, "start_async", lambda *_, **__: None)
    hangs = asyncio.create_task(member(batch(1)))
    while not member.health.began:
        await asyncio.sleep(0)
    member.health.check()
    monkeypatch.setattr("deployments.members.local.HUNG_AFTER_S", 0)
    with pytest.raises(RuntimeError, match="has not ended"):
        member.health.check()
    hangs.cancel()


async def test_an_answer_of_no_finite_number_is_an_error_of_its_request_alone(tmp_path):
    image = op.parameter([-1, 32, 32, 3], np.uint8, name="image")
    mean = op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False)
    # The root of a negative number for a white picture.
    root = op.sqrt(op.subtract(np.float32(254.5), mean))
    logits = op.multiply(op.unsqueeze(root, np.array(1)), np.array([[0, 1, 2]], np.float32))
    store(tmp_path, "root", ov.Model([logits], [image], "root"), classes=("a", "b", "c"))
    answer = await predictor(tmp_path, "root")(batch(10, 255, 20))
    assert answer.live == [0, 2]
    assert isinstance(errors(answer)[1], InferenceFailed)
    assert answer.payload.shape == (2, 3)
    np.testing.assert_allclose(answer.payload.sum(1), 1, rtol=1e-5)


async def test_a_model_of_fixed_batch_size(tmp_path):
    image = op.parameter([2, 32, 32, 3], np.uint8)
    flat = op.reshape(op.convert(image, "f32"), np.array([2, 3072]), False)
    store(
        tmp_path,
        "fixed",
        ov.Model([op.softmax(op.reduce_max(flat, 1, True) * np.ones((1, 3), np.float32), 1)], [image], "f"),
    )
    member = Predictor(OpenVino(name="fixed"), find(tmp_path, "fixed"), (32, 32), 3)
    answer = await member(batch(1, 2, 3))
    np.testing.assert_allclose(answer.payload, np.full((3, 3), 1 / 3), rtol=1e-5)


async def test_a_float_nchw_model_is_fed_as_it_wants(tmp_path):
    image = op.parameter([1, 3, 32, 32], np.float32)
    store(tmp_path, "nchw", ov.Model([op.reduce_mean(image, np.array([2, 3]), False)], [image], "n"))
    picture = np.zeros((1, 32, 32, 3), np.uint8)
    picture[..., 2] = 9
    member = Predictor(OpenVino(name="nchw"), find(tmp_path, "nchw"), (32, 32), 1)
    answer = await member(batches.batch(picture))
    assert answer.payload[0].argmax() == 2


def test_pixels_of_another_size_are_refused_at_start(tmp_path):
    store(tmp_path, "m", constant([0.5, 0.5], size=64))
    with pytest.raises(ConfigurationError, match="does not run"):
        Predictor(OpenVino(name="m"), find(tmp_path, "m"), (32, 32), 1)


def test_a_damaged_model_is_told_with_its_members_name(tmp_path):
    folder = store(tmp_path, "m", brightness())
    (folder / "model.bin").write_bytes(bytes((folder / "model.bin").stat().st_size))
    with pytest.raises(ConfigurationError, match=r"members: 'm': .*model\.bin does not match"):
        predictor(tmp_path, "m")


async def test_the_classes_may_be_in_another_order(tmp_path):
    store(tmp_path, "m", constant([0.5, 0.3, 0.2]), classes=("a", "b", "c"))
    model = find(tmp_path, "m")
    member = Predictor(OpenVino(name="m"), model, (32, 32), 1, class_order(model.labels, ("c", "a", "b")))
    answer = await member(batch(0))
    np.testing.assert_allclose(answer.payload, [[0.2, 0.5, 0.3]], rtol=1e-5)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (op.sigmoid, [0.0, 1.0, 0.0]),
        (op.relu, "--head whether they are `logits` or `shares`"),
    ],
)
async def test_scores_of_other_heads_get_no_plain_softmax(tmp_path, head, expected):
    """A softmax on a sigmoid's 0, 1, 0 makes 0.21, 0.58, 0.21."""
    image = op.parameter([-1, 32, 32, 3], np.uint8)
    mean = op.unsqueeze(op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), False), np.array([1]))
    network = ov.Model(
        [head(op.add(op.multiply(mean, np.float32(0)), np.array([[-20, 20, -20]], np.float32)))], [image]
    )
    store(tmp_path, "m", network, classes=("a", "b", "c"))
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected):
            Predictor(OpenVino(name="m"), find(tmp_path, "m"), (32, 32), 1)
        return
    answer = await Predictor(OpenVino(name="m"), find(tmp_path, "m"), (32, 32), 1)(batch(0))
    np.testing.assert_allclose(answer.payload, [expected], atol=0.01)


async def test_one_score_stands_for_two_classes(tmp_path):
    """It was taken for one class, and every answer was 1.0."""
    image = op.parameter([-1, 32, 32, 3], np.uint8)
    mean = op.unsqueeze(op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), False), np.array([1]))
    logit = op.multiply(op.subtract(mean, np.float32(128)), np.float32(0.1))
    store(tmp_path, "m", ov.Model([op.sigmoid(logit)], [image]), classes=("dark", "light"))
    member = Predictor(OpenVino(name="m"), find(tmp_path, "m"), (32, 32), 2)
    answer = await member(batch(10, 250))
    np.testing.assert_allclose(answer.payload, [[1, 0], [0, 1]], atol=0.01)
    store(tmp_path, "raw", ov.Model([logit], [image]), classes=("dark", "light"))
    with pytest.raises(ConfigurationError, match=r"one output.*--head.*ensemble prepare"):
        Predictor(OpenVino(name="raw"), find(tmp_path, "raw"), (32, 32), 1)


async def test_a_closed_predictor_is_freed_at_once(repository):
    member = predictor(repository, "brightness")
    await member(batch(1, 2, 3))
    freed, _ = weakref.ref(member), gc.disable()
    try:
        member.close()
        del member
        # The timer of the last inference still has it.
        for _ in range(100):
            await asyncio.sleep(0.01)
            if freed() is None:
                break
        assert freed() is None
    finally:
        gc.enable()
