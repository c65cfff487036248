import json
from argparse import Namespace

import numpy as np
import pytest

from scripts.lab.experiments import payloads
from scripts.lab.experiments.forms import FORMS, shared
from scripts.lab.experiments.payloads import Cost, cells, cost, jpeg, report

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
PARSED = [form for form in FORMS if form.parse is not None]


@pytest.mark.parametrize("form", PARSED, ids=lambda form: form.name)
def test_a_server_has_the_pixels_that_a_client_sends(form):
    parsed = form.parse(form.encode(PIXELS, "m").body)
    np.testing.assert_array_equal(getattr(parsed, "data", parsed), PIXELS)


def test_shared_memory_holds_them(tmp_path):
    file = tmp_path / "region"
    file.write_bytes(bytes(1000))
    request = shared(file, "there").encode(PIXELS, "m")
    assert file.read_bytes() == PIXELS.tobytes() + bytes(1000 - PIXELS.nbytes)
    [tensor] = json.loads(request.body)["inputs"]
    assert tensor["parameters"] == {"shared_memory_region": "there", "shared_memory_byte_size": PIXELS.nbytes}


def test_a_jpeg_has_a_twentieth_of_the_bytes_of_floats(cat):
    sizes = {
        form.name: cost("224x224", form, cat[None] if form.of == "pixels" else [jpeg(cat)], 0, None).bytes
        for form in FORMS
    }
    floats = 224 * 224 * 3 * 4
    assert sizes["REST, binary float32"] > floats
    assert sizes["gRPC, raw float32"] > floats
    for form in ("REST, JPEG", "gRPC, JPEG", "JSON, base64 of a JPEG"):
        assert sizes[form] * 20 < floats


@pytest.fixture
def cat():
    from skimage import data

    return payloads.square(data.cat()[:, :, ::-1], 224)


def test_what_is_refused_is_measured_without_being_sent():
    asked = []

    def refused(form, request):
        asked.append(request.path)
        return False

    one = cost("8x8", FORMS[0], PIXELS, 0, refused)
    assert asked == ["/v2/models/resnet/infer"]
    assert one.p50_ms is None
    assert one.server_ms is not None
    assert cells(one)[-2].endswith("(parsing)")


def test_cpu_is_of_an_image_and_a_latency_of_a_request():
    used = iter((1.0, 1.5))
    one = cost("8x8", FORMS[3], PIXELS, 0, lambda *_: True, lambda: next(used))
    # Five requests of two images.
    assert one.server_ms == pytest.approx(50)
    assert one.batch == 2
    assert one.p50_ms > 0


def test_the_table_and_the_files(tmp_path, capsys):
    costs = [
        Cost("photographs", "a", 1, 9.0, 1.0, None, None),
        Cost("224x224", "b", 1, 1234.5, 1.0, 2.0, 3.0),
        Cost("32x32", "c", 4, 9.0, 1.0, 2.0, None),
    ]
    files = {name: tmp_path / f"told.{name}" for name in ("json", "markdown")}
    report(costs, Namespace(**files, plot=tmp_path / "told.svg"))
    lines = files["markdown"].read_text().splitlines()
    assert lines[2:] == [
        "| 32x32 | c | 4 | 9 | 1.00 | 2.00 (parsing) | not sent |",
        "| 224x224 | b | 1 | 1,234 | 1.00 | 2.00 | 3.0 |",
        "| photographs | a | 1 | 9 | 1.00 |  | not sent |",
    ]
    assert len(json.loads(files["json"].read_text())) == 3
    assert "<svg" in (tmp_path / "told.svg").read_text()
    assert "not sent" in capsys.readouterr().out
