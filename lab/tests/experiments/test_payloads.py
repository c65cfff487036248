import asyncio
import json
from types import SimpleNamespace

import cv2
import grpc
import numpy as np
import pytest

from deployments.ingress.grpc.server import GrpcServer
from lab import reported
from lab.experiments import payloads
from lab.experiments.forms import DECODING, FORMS, PREDICT, PREDICTIONS, REGION, shared
from lab.experiments.payloads import PAYLOADS, cost, jpeg, shown
from tests.door import Door
from tests.local_servers import HttpServer, Reply
from tests.unit.deployments.ingress.grpc.test_server import Context

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
PARSED = [form for form in FORMS if form.parse is not None and form.of == "pixels"]
SELDONS = [form for form in FORMS if form.name.startswith("Seldon")]


@pytest.mark.parametrize("form", PARSED, ids=lambda form: form.name)
def test_a_server_has_the_pixels_that_a_client_sends(form):
    parsed = form.parse(form.encode(PIXELS, "m").body)
    np.testing.assert_array_equal(getattr(parsed, "data", parsed), PIXELS)


@pytest.mark.parametrize("form", SELDONS, ids=lambda form: form.name)
@pytest.mark.parametrize("count", [1, 2])
def test_the_server_takes_seldon_s_forms(form, count):
    door, content = Door(), PIXELS[:count] if form.of == "pixels" else [jpeg(image) for image in PIXELS[:count]]
    request = form.encode(content, "m")
    if form.way == "http":
        assert request.path == PREDICTIONS
        assert door.ask(request.path, request.body)[0] == 200
    else:
        assert request.path == PREDICT
        context = Context()
        asyncio.run(GrpcServer(door.service)("seldon.protos.Seldon/Predict", request.body, context))
        assert context.code == grpc.StatusCode.OK
    if form.of == "jpeg":
        assert sorted(door.images) == sorted(content)
    else:
        found = [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1] for image in door.images]
        np.testing.assert_array_equal(found, content)


def test_shared_memory_holds_them(tmp_path):
    file = tmp_path / "region"
    file.write_bytes(bytes(1000))
    request = shared(file).encode(PIXELS, "m")
    assert file.read_bytes() == PIXELS.tobytes() + bytes(1000 - PIXELS.nbytes)
    [tensor] = json.loads(request.body)["inputs"]
    assert tensor["parameters"] == {"shared_memory_region": REGION, "shared_memory_byte_size": PIXELS.nbytes}


@pytest.fixture(scope="module")
def unsent():
    """Rows of one image that was sent nowhere."""
    from skimage import data

    cat = payloads.square(data.cat()[:, :, ::-1], 224)
    content = {"pixels": cat[None], "jpeg": [jpeg(cat)]}
    return [{"images": payloads.PIXELS, **cost(form, content[form.of], 0, {})} for form in FORMS]


def test_a_jpeg_has_a_twentieth_of_the_bytes_of_floats(unsent):
    sizes = {row["form"]: row["bytes"] for row in unsent}
    floats = 224 * 224 * 3 * 4
    for form in ("Seldon gRPC, TensorProto, raw float32", "Seldon gRPC, Tensor"):
        assert sizes[form] > floats
    for form in ("REST, JPEG", "gRPC, JPEG", "Seldon gRPC, JPEG"):
        assert sizes[form] * 20 < floats


def test_every_reported_figure_has_one_beside_it(unsent):
    here = PAYLOADS.compare(shown(unsent))
    # Nobody measured a server's CPU for a form that was not sent.
    unsent_here = {"Tensor's deserialization", "fastest protocol of three for one image"}
    assert {each.subject for each in reported.of("payloads")} - set(here) == unsent_here
    assert here["traffic of 1,000 float32 images per second"] == "4.82 Gb/s, computed from the bytes"
    assert here["overhead of Tensor, a vector of doubles, over gRPC"] == "not sent"
    assert int(here["network traffic of arrays, in traffic of JPEGs"].split()[0]) > 20
    in_memory = {**unsent[0], "form": "shared memory, uint8"}
    sent = shown([{**row, "p50_ms": 7.25, "server_ms": row["server_ms"] or 0.5} for row in (*unsent, in_memory)])
    assert set(PAYLOADS.compare(sent)) == {each.subject for each in reported.of("payloads")}
    assert PAYLOADS.compare(sent)["ListValue against Tensor"] == "7.2 ms, and 7.2 ms as Tensor"
    (told, bars), (_, here_bars) = PAYLOADS.picture(sent)
    assert (told, len(bars), len(here_bars)) == ("reported", 5, len(FORMS) + 1)


def test_the_default_limit_would_refuse_what_the_experiment_sends(unsent):
    lists = json.dumps(np.zeros((max(payloads.BATCHES), 224, 224, 3)).tolist())
    assert 32_768 * 20 < sum(map(lists.count, ",[")) < payloads.MOST_ELEMENTS


def test_a_refused_form_is_measured_without_being_sent():
    with HttpServer(lambda asked: Reply(422)) as server:
        one = cost(FORMS[-1], [jpeg(PIXELS[0])], 0, {"http": server.url})
        assert one["form"] == DECODING
        assert one["server_ms"] > 0
        one = cost(FORMS[0], PIXELS, 0, {"http": server.url})
        assert [each.path for each in server.asked] == [PREDICTIONS]
        assert (one["server_ms"], one["p50_ms"]) == (None, None)


def test_cpu_is_of_an_image_and_a_latency_of_a_request():
    used = iter((1.0, 1.5))
    with HttpServer(lambda asked: Reply()) as server:
        one = cost(FORMS[0], PIXELS, 0.2, {"http": server.url}, lambda: next(used))
    # Requests of two images.
    assert 0 < one["server_ms"] <= 500 / 2
    assert one["batch"] == 2
    assert one["p50_ms"] > 0


@pytest.mark.parametrize(("mean_ms", "seconds"), [(1.0, 2.0), (100.0, 33.0), (5000.0, 200.0)])
def test_a_slow_form_is_sent_for_longer(mean_ms, seconds, monkeypatch):
    monkeypatch.setattr(payloads, "measure", lambda *_: SimpleNamespace(requests=1, mean_ms=mean_ms))
    assert payloads._enough(None, 2.0) == pytest.approx(seconds)


def test_the_client_s_cpu_is_of_the_encoding_and_of_the_load(monkeypatch):
    load = SimpleNamespace(failed=0, requests=10, client_cpu_ms=6000.0, percentiles_ms={"p50": 5.0}, mean_ms=5.0)
    monkeypatch.setattr(payloads, "measure", lambda *given: load)
    with HttpServer(lambda asked: Reply()) as server:
        one = cost(FORMS[0], PIXELS, 0, {"http": server.url})
    # Of two images a request; the latency has the encoding alone.
    assert 3000 < one["client_ms"] < 4000
    assert 5 < one["p50_ms"] < 1000


def test_the_table():
    names = ("images", "form", "batch", "bytes", "client_ms", "server_ms", "p50_ms")
    costs = [
        ("224x224", "b", 1, 602_112.0, 1.0, 2.0, 3.0),
        ("224x224", "c", 4, 9.0, 1.0, 2.0, None),
        ("photographs", "a", 1, 9.0, 1.0, None, None),
    ]
    assert PAYLOADS.table(shown([dict(zip(names, one, strict=True)) for one in costs])).markdown().splitlines()[2:] == [
        "| b | 602,112 | 1.00 | 2.00 | 3.0 |",
    ]
