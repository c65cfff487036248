"""Every form of `ensemble experiments payloads` that a protocol takes is answered."""

import httpx
import numpy as np
import pytest

from lab.experiments.forms import FORMS, REGION, Asking, region, register, shared
from lab.experiments.payloads import cost, jpeg
from tests.server.shared.servers import only

pytestmark = only(2)


@pytest.fixture
def ask(server):
    asking = Asking(server.url, f"grpc://{server.grpc}")
    yield asking
    asking.close()


@pytest.fixture
def file(server):
    with region(2 * 32 * 32 * 3, "es-test") as found:
        register(server.url, found)
        yield found
        assert httpx.post(f"{server.url}/v2/systemsharedmemory/region/{REGION}/unregister").status_code == 200


@pytest.mark.parametrize("batch", [1, 2])
def test_each_form_is_answered(ask, file, batch, monkeypatch):
    monkeypatch.setattr("lab.experiments.payloads.MEMBER", "one")
    pixels = np.zeros((batch, 32, 32, 3), np.uint8)
    encoded = [jpeg(image) for image in pixels]
    for form in (*FORMS, shared(file, REGION)):
        one = cost("32x32", form, pixels if form.of == "pixels" else encoded, 0, ask)
        assert (one.p50_ms is not None) == (form.way is not None), form.name
