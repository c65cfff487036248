"""Each payload is sent by each protocol at each rate, and the protocols are compared by payload."""

from contextlib import contextmanager
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from ensemble_serving.protocol import inference_pb2 as pb
from lab import reported
from lab.experiments import protocols
from lab.experiments.experiment import figures
from lab.experiments.protocols import PAYLOADS, PROTOCOLS, PROTOCOLS_BY_PAYLOAD, RATES, ROUNDS
from lab.rows import medians
from scripts.errors import ScriptError


@pytest.fixture
def picture(monkeypatch):
    one = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    monkeypatch.setattr(protocols, "originals", lambda: [one])
    return protocols.square(one, protocols.EDGE)


def test_every_payload_has_the_same_picture(picture):
    asked = protocols.requests()
    assert set(asked) == {(payload, protocol) for payload in PAYLOADS for protocol in PROTOCOLS}
    message = pb.ModelInferRequest.FromString(asked["numbers", "grpc"].body)
    [numbers] = message.inputs
    assert list(message.raw_input_contents) == []
    assert list(numbers.shape) == [1, *picture.shape]
    np.testing.assert_array_equal(np.reshape(numbers.contents.uint_contents, picture.shape), picture)
    [raw] = pb.ModelInferRequest.FromString(asked["binary tensor", "grpc"].body).raw_input_contents
    assert raw == picture.tobytes()
    assert picture.tobytes() in asked["binary tensor", "http"].body
    sizes = {key: len(request.body) for key, request in asked.items()}
    assert sizes["JPEG", "http"] < sizes["binary tensor", "http"] < sizes["numbers", "grpc"] < sizes["numbers", "http"]
    [jpeg] = pb.ModelInferRequest.FromString(asked["JPEG", "grpc"].body).raw_input_contents
    decoded = cv2.imdecode(np.frombuffer(jpeg[4:], np.uint8), cv2.IMREAD_COLOR)
    assert decoded.shape == picture.shape


def measured(target, mode, duration):
    """Numbers over REST are answered at most 20 times a second; nothing else is lost."""
    is_slow = target.url == protocols.URLS["http"] and b'"data":[' in target.protocol.one.body
    rate = min(mode.rate, 20.0 if is_slow else mode.rate)
    failed = round((mode.rate - rate) * duration.seconds)
    answered = round(rate * duration.seconds)
    return SimpleNamespace(
        requests=answered, failed=failed, requests_per_s=rate, percentiles_ms={"p50": 1.0, "p99": 2.0}
    )


@pytest.fixture
def rows(picture, monkeypatch):
    @contextmanager
    def running(*_):
        yield None

    monkeypatch.setattr(protocols, "running", running)
    monkeypatch.setattr(protocols, "measure", measured)
    monkeypatch.setattr(protocols, "answers", lambda url, request: True)
    return [row for part in PROTOCOLS_BY_PAYLOAD.parts(13.0) for row in part.rows()]


def test_each_rate_of_each_is_measured_in_each_round_and_the_protocols_are_compared(rows):
    assert len(rows) == len(PAYLOADS) * len(PROTOCOLS) * len(RATES) * ROUNDS
    shown = PROTOCOLS_BY_PAYLOAD.summary(rows)
    assert len(shown) == len(rows) / ROUNDS
    most = max(RATES)
    [slow] = [row for row in shown if row["failed"] and row["rate"] == most]
    assert slow["failed_share"] == pytest.approx(100 * (most - 20) / most, abs=0.1)
    [(subject, text)] = PROTOCOLS_BY_PAYLOAD.compare(shown).items()
    assert subject in {each.subject for each in reported.of("protocols")}
    assert f"numbers: gRPC {most}/s, REST 20/s, more by gRPC" in text
    assert f"JPEG: gRPC {most}/s, REST {most}/s, no difference" in text


def test_a_load_begins_when_the_server_has_worked_off_the_load_before(monkeypatch):
    # A request in between that was refused, or came late, begins the count anew.
    answered = iter([True, False, *[True] * protocols.IN_TURN])
    monkeypatch.setattr(protocols, "answers", lambda *_: next(answered))
    protocols.worked_off(None)
    assert list(answered) == []
    monkeypatch.setattr(protocols, "answers", lambda *_: False)
    monkeypatch.setattr(protocols, "PATIENCE_S", 0.0)
    with pytest.raises(ScriptError, match="has not worked off"):
        protocols.worked_off(None)


def test_a_load_without_an_answer_has_no_latency():
    load = SimpleNamespace(requests=0, percentiles_ms={"p50": float("nan"), "p99": float("nan")})
    row = figures(load, "requests", "p50_ms", "p99_ms")
    assert row == {"requests": 0, "p50_ms": None, "p99_ms": None}
    [median] = medians([row, {**row, "p50_ms": 2.0}, row], ["p50_ms", "p99_ms"])
    assert median == {"requests": 0, "p50_ms": 2.0, "p99_ms": None}


def test_every_row_has_enough_requests_at_the_default_length():
    seconds = PROTOCOLS_BY_PAYLOAD.seconds
    assert min(RATES) * seconds * ROUNDS >= 300
