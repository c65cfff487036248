import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from deployments.contract.errors import DeadlineExceeded, EnsembleError, ImageTooLarge, InvalidImage, Overloaded
from deployments.contract.image_probe import probe
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import BYTES_PER_PIXEL
from deployments.transformer.isolation.pool import IsolatedPool
from deployments.transformer.isolation.worker import FREE_BYTES, MemoryBudget, Worker
from deployments.transformer.transformer import JpegTransformer, TransformerSettings
from tests import decoders, pictures
from tests.batches import batch, errors
from tests.server.server import eventually

WANTED = (Preprocessing((16, 16)), Preprocessing((20, 40), resize="stretch"))
LIMITS = TransformerSettings(max_image_bytes=2**20, decode_timeout_ms=60_000)
BRIEF = TransformerSettings(max_image_bytes=2**20, decode_timeout_ms=2000)
GOOD = pictures.encode(pictures.grey(80), ".png")


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker whose process has decoders that hang and crash."""
    monkeypatch.setattr(sys, "path", [str(decoders.install(tmp_path)), *sys.path])
    kept = Worker(MemoryBudget())
    yield kept
    kept.end(at_once=True)


def decode(worker, image, limits=LIMITS, seconds=120.0):
    return worker.decode(image, WANTED, limits, time.monotonic() + seconds)


def test_an_image_is_decoded_as_in_this_process(worker):
    image = pictures.encode(pictures.noise(), ".png")
    sets, size, *_ = decode(worker, image)
    assert size == (160, 120)
    [decoded] = JpegTransformer(TransformerSettings(), {"a": WANTED[1]}, 1)._decode([(image, probe(image))])
    assert [each.shape for each in sets] == [(16, 16, 3), (20, 40, 3)]
    np.testing.assert_array_equal(sets[1], decoded.pixels[0])


def test_it_is_one_process_for_all_images(worker):
    assert worker.pid is None
    decode(worker, GOOD)
    pid = worker.pid
    with pytest.raises(InvalidImage, match="truncated"):
        decode(worker, GOOD[:60])
    with pytest.raises(InvalidImage, match="no bytes"):
        decode(worker, b"")
    with pytest.raises(ImageTooLarge, match="20000 x 20000"):
        decode(worker, pictures.bomb())
    decode(worker, GOOD)
    assert worker.pid == pid


def test_a_decoder_that_hangs_is_ended_and_replaced(worker):
    decode(worker, GOOD)
    hanging = worker.pid
    with pytest.raises(ImageTooLarge, match="takes more than 2 s"):
        decode(worker, decoders.that("hang"), BRIEF)
    assert not psutil.pid_exists(hanging)
    decode(worker, GOOD)
    with pytest.raises(DeadlineExceeded):
        decode(worker, decoders.that("hang"), seconds=0.5)


def test_a_process_that_starts_too_late_for_an_image_is_kept_for_the_next(worker):
    with pytest.raises(DeadlineExceeded, match="before the image was decoded"):
        decode(worker, GOOD, seconds=0.01)
    started = worker.pid
    decode(worker, GOOD)
    assert worker.pid == started is not None


def test_a_decoder_that_crashes_is_replaced(worker):
    decode(worker, GOOD)
    before = worker.pid
    with pytest.raises(InvalidImage, match="ended the process"):
        decode(worker, decoders.that("crash"))
    decode(worker, GOOD)
    assert worker.pid != before


@pytest.mark.parametrize("name", ["socket.socketpair", "subprocess.Popen"])
def test_where_no_process_can_be_started_the_image_is_not_blamed(worker, monkeypatch, name):
    def full(*_, **__):
        raise BlockingIOError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(name, full)
        with pytest.raises(EnsembleError, match="did not start") as raised:
            decode(worker, GOOD)
    assert type(raised.value) is EnsembleError
    assert decode(worker, GOOD)[1] == (64, 64)


def test_an_image_whose_process_was_killed_is_decoded_by_another(worker):
    decode(worker, GOOD)
    os.kill(worker.pid, signal.SIGKILL)
    assert decode(worker, GOOD)[1] == (64, 64)


@pytest.mark.parametrize("by", [signal.SIGALRM, signal.SIGSEGV])
def test_a_process_that_is_found_dead_says_nothing_about_the_next_image(worker, by):
    decode(worker, GOOD)
    os.kill(worker.pid, by)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert decode(worker, GOOD)[1] == (64, 64)


def test_a_process_without_images_ends_and_another_starts(worker, monkeypatch, caplog):
    monkeypatch.setattr("deployments.transformer.isolation.worker.IDLE_S", 0.2)
    decode(worker, GOOD)
    first = worker.pid
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert decode(worker, GOOD)[1] == (64, 64)
    assert worker.pid != first
    assert not caplog.records


def test_a_process_that_ends_while_an_image_is_sent_says_nothing_about_it(worker, monkeypatch):
    decode(worker, GOOD)
    monkeypatch.setattr(worker._process, "poll", lambda: None)
    os.kill(worker.pid, signal.SIGSEGV)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert decode(worker, GOOD)[1] == (64, 64)


def test_an_image_that_found_no_room_leaves_no_alarm_behind(worker):
    memory, brief = worker._memory, TransformerSettings(max_image_bytes=2**20, decode_timeout_ms=100)
    decode(worker, GOOD)
    assert memory.take(LIMITS.max_decoding_bytes, LIMITS.max_decoding_bytes, time.monotonic())
    with pytest.raises(Overloaded):
        decode(worker, large(), brief, seconds=0.5)
    # The alarm would be due 1.6 s after it was set.
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(worker.pid).wait(2.5)


def test_memory_is_bounded_by_the_system(worker):
    with pytest.raises(InvalidImage, match="can't be decoded"):
        decode(worker, decoders.that("fill"))
    decode(worker, GOOD)


def test_where_the_system_gives_less_memory_images_are_decoded_in_that():
    bounded = """
import resource
from tests.unit.deployments.transformer.isolation import test_pool as tests
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
worker = tests.Worker(tests.MemoryBudget())
print(tests.decode(worker, tests.GOOD, tests.TransformerSettings(max_decoding_bytes=2**31)).size)
worker.end(at_once=True)
"""
    done = subprocess.run([sys.executable, "-c", bounded], capture_output=True, text=True)
    assert done.stdout == "(64, 64)\n", done.stderr


def large(than=FREE_BYTES):
    """A picture that takes more than so many bytes, and less than twice as much."""
    side = int((than / BYTES_PER_PIXEL["PNG"]) ** 0.5) + 10
    return pictures.encode(pictures.grey(80, side, side), ".png")


def test_what_takes_more_than_all_the_room_is_too_large(worker):
    tight = TransformerSettings(max_image_bytes=2**20, max_decoding_bytes=2**25, decode_timeout_ms=60_000)
    with pytest.raises(ImageTooLarge, match="of memory"):
        decode(worker, large(2**25), tight)
    decode(worker, GOOD, tight)


@pytest.mark.parametrize(("size", "is_decoded"), [(2**20, False), (2**21, True)])
def test_a_jpeg_in_several_scans_may_take_more_where_it_is_large_itself(worker, size, is_decoded):
    # 72 MB, more than the default.
    image = pictures.progressive(6000, 4000)
    content = image + bytes(size - len(image))
    limits = TransformerSettings(decode_timeout_ms=60_000)
    if is_decoded:
        assert decode(worker, content, limits)[1] == (6000, 4000)
    else:
        with pytest.raises(ImageTooLarge, match="baseline JPEG"):
            decode(worker, content, limits)


def test_a_large_image_waits_for_room_within_its_deadline(worker):
    memory = worker._memory
    assert memory.take(LIMITS.max_decoding_bytes, LIMITS.max_decoding_bytes, time.monotonic())
    # A small one takes none.
    decode(worker, GOOD)
    with pytest.raises(Overloaded, match="large images"):
        decode(worker, large(), seconds=3.0)
    answers = []
    waits = threading.Thread(target=lambda: answers.append(decode(worker, large())[1]))
    waits.start()
    while not memory._waiting:
        pass
    assert not answers
    memory.give(LIMITS.max_decoding_bytes)
    waits.join()
    assert len(answers) == 1
    assert memory.take(LIMITS.max_decoding_bytes, LIMITS.max_decoding_bytes, time.monotonic())


def test_room_is_taken_in_turn():
    memory, order = MemoryBudget(), []
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
    [outcome], _ = await pool.decode([(GOOD, None)], WANTED, TransformerSettings())
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
    [outcome], _ = await IsolatedPool(1).decode([(GOOD, None)], WANTED, TransformerSettings())
    assert type(outcome) is EnsembleError
