import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from deployments.contract.errors import DeadlineExceeded, EnsembleError, ImageTooLarge, InvalidImage, Overloaded
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.isolation.keeper import FREE_BYTES, Keeper, Limits, Memory
from deployments.transformer.isolation.pool import IsolatedPool
from deployments.transformer.transformer import JpegTransformer, TransformerSettings
from tests import decoders, pictures
from tests.batches import batch, errors
from tests.server.server import eventually

WANTED = (Preprocessing((16, 16)), Preprocessing((20, 40), resize="stretch"))
LIMITS = Limits(2**20, 50_000_000, 2**30, 60.0)
BRIEF = Limits(2**20, 50_000_000, 2**30, 2.0)
GOOD = pictures.encode(pictures.grey(80), ".png")


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    """A keeper whose process has decoders that hang and crash."""
    monkeypatch.setattr(sys, "path", [str(decoders.install(tmp_path)), *sys.path])
    kept = Keeper(Memory())
    yield kept
    kept.end(at_once=True)


def decode(keeper, image, limits=LIMITS, seconds=120.0):
    return keeper.decode(image, WANTED, limits, time.monotonic() + seconds)


def test_an_image_is_decoded_as_in_this_process(keeper):
    image = pictures.encode(pictures.noise(), ".png")
    sets, size = decode(keeper, image)
    assert size == (160, 120)
    [here] = JpegTransformer(TransformerSettings(), {"a": WANTED[1]}, 1)._decode(image)[0]
    assert [each.shape for each in sets] == [(16, 16, 3), (20, 40, 3)]
    np.testing.assert_array_equal(sets[1], here)


def test_it_is_one_process_for_all_images(keeper):
    assert keeper.pid is None
    decode(keeper, GOOD)
    pid = keeper.pid
    with pytest.raises(InvalidImage, match="truncated"):
        decode(keeper, GOOD[:60])
    with pytest.raises(InvalidImage, match="no bytes"):
        decode(keeper, b"")
    with pytest.raises(ImageTooLarge, match="20000 x 20000"):
        decode(keeper, pictures.bomb())
    decode(keeper, GOOD)
    assert keeper.pid == pid


def test_a_decoder_that_hangs_is_ended_and_replaced(keeper):
    decode(keeper, GOOD)
    hanging = keeper.pid
    with pytest.raises(ImageTooLarge, match="takes more than 2 s"):
        decode(keeper, decoders.that("hang"), BRIEF)
    assert not psutil.pid_exists(hanging)
    decode(keeper, GOOD)
    with pytest.raises(DeadlineExceeded):
        decode(keeper, decoders.that("hang"), seconds=0.5)


def test_a_decoder_that_crashes_is_replaced(keeper):
    decode(keeper, GOOD)
    before = keeper.pid
    with pytest.raises(InvalidImage, match="ended the process"):
        decode(keeper, decoders.that("crash"))
    decode(keeper, GOOD)
    assert keeper.pid != before


def test_an_image_whose_process_was_killed_is_decoded_by_another(keeper):
    decode(keeper, GOOD)
    os.kill(keeper.pid, signal.SIGKILL)
    assert decode(keeper, GOOD)[1] == (64, 64)


@pytest.mark.parametrize("by", [signal.SIGALRM, signal.SIGSEGV])
def test_a_process_that_is_found_dead_says_nothing_about_the_next_image(keeper, by):
    decode(keeper, GOOD)
    os.kill(keeper.pid, by)
    os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)
    assert decode(keeper, GOOD)[1] == (64, 64)


def test_a_process_that_ends_while_an_image_is_sent_says_nothing_about_it(keeper, monkeypatch):
    decode(keeper, GOOD)
    monkeypatch.setattr(keeper._process, "poll", lambda: None)
    os.kill(keeper.pid, signal.SIGSEGV)
    os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)
    assert decode(keeper, GOOD)[1] == (64, 64)


def test_an_image_that_found_no_room_leaves_no_alarm_behind(keeper):
    memory, brief = keeper._memory, Limits(2**20, 50_000_000, 2**30, 0.1)
    decode(keeper, GOOD)
    assert memory.take(LIMITS.max_decoding_bytes, LIMITS.max_decoding_bytes, time.monotonic())
    with pytest.raises(Overloaded):
        decode(keeper, large(), brief, seconds=0.5)
    # The alarm would be due 1.6 s after it was set.
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(keeper.pid).wait(2.5)


def test_memory_is_bounded_by_the_system(keeper):
    with pytest.raises(InvalidImage, match="can't be decoded"):
        decode(keeper, decoders.that("fill"))
    decode(keeper, GOOD)


def large(keeper_limits=FREE_BYTES):
    """A picture that takes more than what is free, and less than twice as much."""
    side = int((keeper_limits / 12) ** 0.5) + 10
    return pictures.encode(pictures.grey(80, side, side), ".png")


def test_what_takes_more_than_all_the_room_is_too_large(keeper):
    tight = Limits(2**20, 50_000_000, FREE_BYTES, 60.0)
    with pytest.raises(ImageTooLarge, match="of memory"):
        decode(keeper, large(), tight)
    decode(keeper, GOOD, tight)


def test_a_large_image_waits_for_room_within_its_deadline(keeper):
    memory = keeper._memory
    assert memory.take(LIMITS.max_decoding_bytes, LIMITS.max_decoding_bytes, time.monotonic())
    with pytest.raises(Overloaded, match="large images"):
        decode(keeper, large(), seconds=3.0)
    # A small one takes none.
    decode(keeper, GOOD)
    answers = []
    waits = threading.Thread(target=lambda: answers.append(decode(keeper, large())[1]))
    waits.start()
    while not memory._waiting:
        pass
    assert not answers
    memory.give(LIMITS.max_decoding_bytes)
    waits.join()
    assert len(answers) == 1
    assert memory.take(LIMITS.max_decoding_bytes, LIMITS.max_decoding_bytes, time.monotonic())


def test_room_is_taken_in_turn():
    memory, order = Memory(), []
    later = time.monotonic() + 600
    assert memory.take(10, 10, later)
    threads = []
    for size in (10, 1):
        threads.append(threading.Thread(target=lambda size=size: (memory.take(size, 10, later), order.append(size))))
        threads[-1].start()
        while len(memory._waiting) < len(threads):
            pass
    memory.give(10)
    threads[0].join()
    assert order == [10]
    memory.give(10)
    threads[1].join()
    assert order == [10, 1]
    assert not memory.take(10, 10, time.monotonic())


async def test_what_hangs_and_crashes_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(decoders.install(tmp_path)), *sys.path])
    settings = TransformerSettings(decode_timeout_ms=2000)
    transformer = JpegTransformer(settings, {"small": WANTED[0]}, threads=2)
    images = [pictures.jpeg(), decoders.that("crash"), GOOD, decoders.that("hang"), b"no image", GOOD, pictures.jpeg()]
    answer = await transformer(batch(images))
    assert {position: type(error) for position, error in errors(answer).items()} == {
        1: InvalidImage,
        3: ImageTooLarge,
        4: InvalidImage,
    }
    assert answer.payload["small"].shape == (4, 16, 16, 3)
    assert [item.image_size for item in answer.items] == [(160, 120), None, (64, 64), None, None, (64, 64), (160, 120)]


async def test_processes_end_with_their_pool():
    pool = IsolatedPool(2)
    [outcome] = await pool.decode([(GOOD, None)], WANTED, TransformerSettings())
    assert outcome[1] == (64, 64)
    [pid] = pool.processes
    del pool
    # The thread that decoded last may hold it for a moment.
    assert eventually(lambda: gc.collect() is not None and not psutil.pid_exists(pid))


async def test_everything_can_be_isolated():
    transformer = JpegTransformer(TransformerSettings(), {"small": WANTED[0]}, threads=1, isolate="all")
    assert not errors(await transformer(batch([pictures.jpeg()])))
    assert len(transformer._isolated.processes) == 1
    plain = JpegTransformer(TransformerSettings(), {"small": WANTED[0]}, threads=1)
    assert not errors(await plain(batch([pictures.jpeg()])))
    assert plain._isolated.processes == []


async def test_a_process_that_does_not_start_is_no_fault_of_the_image(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    [outcome] = await IsolatedPool(1).decode([(GOOD, None)], WANTED, TransformerSettings())
    assert type(outcome) is EnsembleError
