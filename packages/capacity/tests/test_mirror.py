"""`ensemble mirror`: what a server records, and what is said of another server's answers."""

from __future__ import annotations

import hashlib
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import msgspec
import pytest

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.caller import Caller
from deployments.contract.errors import ConfigurationError, InferenceFailed
from deployments.contract.item import Item, Note, Step
from deployments.contract.options import Options
from deployments.pipeline.pipeline import InFlight
from ensemble_capacity import mirror
from ensemble_capacity.recording import MB, Recorded, Recording, RecordingSettings
from graph.config import parse
from packages.capacity.tests.plan.profiles import application
from tests.local_servers import HttpServer, Reply

NAME = "ensemble_capacity.recording:Recording"
STEP = Step(Note("predict", 1_000_000_000, 1_007_000_000, {}, ("here", 1)))


def recording(folder, max_mb=1):
    settings = RecordingSettings(folder=folder, max_mb=max_mb)
    return Recording(None, None, SimpleNamespace(settings=settings, replica="a"))


def answered(feature, *images, errors=()):
    """Record a batch, of which some images have failed."""
    given(feature, *images, errors=errors)
    feature._writer.shutdown()


def given(feature, *images, errors=()):
    """Give the feature a batch on its way back, of which some images have failed."""
    sent = Item(
        queued_ns=1_000_000_000,
        options=Options(top_k=2),
        caller=Caller(headers={"authorization": "secret"}, name="secret"),
    )
    done = [Item(steps=(STEP,), error=errors[i] if i < len(errors) else None) for i in range(len(images))]
    answer = Answer(Classification(label="cat", index=0, probability=1.0, top=(), model_versions={}, trace_id=""), None)
    payload = [answer for each in done if each.error is None]
    batch = InFlight(Batch(list(images), (sent,) * len(images)), [])
    feature.on_part(batch, range(len(images)), Batch(payload, tuple(done)))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recorded").mkdir(mode=0o700)
    return tmp_path / "recorded"


def test_an_image_is_recorded_with_its_options_and_answer_and_nothing_else(folder):
    answered(recording(folder), b"good", b"bad", errors=(None, InferenceFailed("no")))
    [file] = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    good, bad = (each.read() for each in mirror.places(folder))
    assert good == Recorded(1.0, b"good", {"top_k": 2}, "cat", 7.0)
    assert (bad.image, bad.label, bad.error) == (b"bad", "", InferenceFailed.code)
    assert b"secret" not in file.read_bytes()


def test_no_more_is_recorded_than_the_folder_may_have(folder):
    (folder / "earlier.jsonl").write_bytes(b"x" * (MB - 100))
    answered(recording(folder), b"1" * 90, b"2" * 90)
    assert len((folder / "a.jsonl").read_bytes().splitlines()) == 1


def test_a_slow_disk_neither_delays_the_answers_nor_keeps_every_image(folder, monkeypatch, caplog):
    monkeypatch.setattr("ensemble_capacity.recording.MOST_WAITING_BYTES", 250)
    feature, disk = recording(folder), threading.Event()
    feature._writer.submit(disk.wait)
    with caplog.at_level("WARNING", "ray.serve"):
        given(feature, *[b"%d" % number * 100 for number in range(4)])
    assert [record.message.partition(":")[0] for record in caplog.records] == ["images are left out of the recording"]
    assert (folder / "a.jsonl").read_bytes() == b""
    disk.set()
    feature._writer.shutdown()
    assert [each.read().image[:1] for each in mirror.places(folder)] == [b"0", b"1"]


def test_a_folder_that_others_can_enter_is_refused(folder):
    folder.chmod(0o755)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        recording(folder)
    with pytest.raises(ConfigurationError, match="'recorded' is no absolute path"):
        parse({**application()["args"], "features": {NAME: {"folder": "recorded"}}})


def answers(count, label="cat", took_ms=10.0, error="", images=10**6):
    return [Recorded(n, b"%d" % (n % images), {}, label, took_ms, error) for n in range(count)]


def compared(old, new):
    found = mirror.Comparison()
    for pair in zip(old, new, strict=True):
        found.add(*pair)
    return found.found()


@pytest.mark.parametrize(
    ("old", "new", "judge", "verdict"),
    [
        # A faster server of other labels.
        (answers(40), answers(40, "dog", 5.0), "labels", "don't"),
        (answers(1000), answers(950, took_ms=5.0) + answers(1000, "dog", 5.0)[950:], "labels", "don't"),
        # So few images leave it open whether 99 % of the labels are equal, or whether they ever are.
        (answers(40), answers(40, took_ms=5.0), "labels", "need 341 more"),
        (answers(1000), answers(990, took_ms=5.0) + answers(1000, "dog", 5.0)[990:], "labels", "need 37,032 more"),
        (answers(9, error="overloaded"), answers(9), "labels", "need 381 more"),
        # An image that one client repeats is one image.
        (answers(1000, images=2), answers(1000, images=2, took_ms=5.0), "labels", "need 379 more"),
        # An image whose answer has the right label but once is not equal.
        (answers(400) * 2, answers(400) + answers(400, "dog"), "labels", "don't"),
        (answers(400), answers(400, error="overloaded", took_ms=0.0), "labels", "don't"),
        (answers(400), answers(400, took_ms=5.0), "failures and latency", "promote"),
        (answers(400, took_ms=5.0), answers(400), "failures and latency", "don't"),
        (answers(400, took_ms=5.0), answers(400, took_ms=4.6), "failures and latency", "need 800 more"),
        # A server that tells no time.
        (answers(400), answers(400, took_ms=float("nan")), "failures and latency", "need 800 more"),
    ],
)
def test_labels_are_judged_before_latencies(old, new, judge, verdict):
    found = compared(old, new)
    assert (found["judged_by"], found["verdict"]) == (judge, verdict)


def test_what_is_said_of_two_servers():
    before = [*answers(10), Recorded(10, b"", error="overloaded")]
    fast = [Recorded(n, each.image, {}, "dog" if n < 5 else "cat", 5.0) for n, each in enumerate(before)]
    found = compared(before, fast)
    assert (found["agreement"], found["compared"], found["ms"]["p50"]) == (0.5, 10, [10.0, 5.0])
    assert (found["faster"], found["slower"], found["failed"]) == (11, 0, [1, 0])
    assert found["differ"] == [hashlib.sha256(b"%d" % n).hexdigest() for n in range(5)]
    lines = mirror.sentences(found)
    assert lines[0] == "11 images; 1 had failed, 0 failed here"
    assert "labels: agree on 50.00%" in lines[1]
    assert "p50 10.0 recorded, 5.0 here" in lines[2]
    assert lines[-1] == "don't, by the labels"
    none = answers(11, error="overloaded")
    assert "labels: agree on none of 0 different images" in mirror.sentences(compared(none, none))[1]


def test_a_record_is_not_read_into_memory(folder):
    image = b"x" * 500_000
    with (folder / "b.jsonl").open("wb") as stream:
        for n in range(20):
            stream.write(msgspec.json.encode(Recorded(n, image, {}, "cat")) + b"\n")
    tracemalloc.start()
    try:
        found = mirror.places(folder)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert found[-1].read() == Recorded(19, image, {}, "cat")


def test_images_are_sent_at_their_times_with_their_options(folder, monkeypatch, capsys):
    timings = [{"stage": "queue", "start_ms": 0, "duration_ms": 1}, {"stage": "a", "start_ms": 1, "duration_ms": 2.5}]
    answer = {"label": "cat", "index": 0, "probability": 1.0, "top": [], "model_versions": {}, "trace_id": "0" * 32}
    body = msgspec.json.encode({**answer, "timings": timings})
    images = [Recorded(n / 5, str(n).encode(), {"top_k": 2}, "cat", 9.0) for n in range(3)]
    (folder / "b.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in images[::-1]) + b"unfin")
    replies = iter(
        [Reply(body=body), Reply(503, b'{"error": {"code": "overloaded", "message": "full"}}'), Reply(body=body)]
    )
    with HttpServer(lambda asked: next(replies)) as server:
        monkeypatch.setattr(sys, "argv", ["mirror", server.url, str(folder), "--json", str(folder / "out")])
        mirror.main(standalone_mode=False)
        assert [asked.body for asked in server.asked] == [b"0", b"1", b"2"]
        assert all("timings=true" in asked.path and "top_k=2" in asked.path for asked in server.asked)
    found = msgspec.json.decode((folder / "out").read_bytes())
    assert (found["failed"], found["faster"], found["slower"], found["ms"]["p99"]) == ([0, 1], 2, 1, [9.0, 3.5])
    assert "3 images; 0 had failed, 1 failed here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has no recording"), (b"{}\n", "is no recording"), (b'{"at_s":1,"image":""}\n', "no answer")],
)
def test_bad_input_is_one_line(folder, content, message, monkeypatch):
    (folder / "b.jsonl").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["mirror", "http://127.0.0.1:9", str(folder)])
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        mirror.main()
