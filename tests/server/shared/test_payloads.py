"""Every form of `ensemble experiments payloads` is answered, or refused as the experiment says."""

import numpy as np
import pytest

from scripts.lab.experiments.asking import REGION, Asking, region, register
from scripts.lab.experiments.forms import FORMS, shared
from scripts.lab.experiments.payloads import cost, jpeg
from tests.server.shared.servers import only

pytestmark = only(2)


@pytest.fixture
def ask(server):
    asking = Asking(server.url, f"grpc://{server.grpc}")
    yield asking
    asking.close()


@pytest.mark.parametrize("batch", [1, 16])
def test_each_form_is_answered(ask, server, batch, monkeypatch):
    monkeypatch.setattr("scripts.lab.experiments.payloads.MEMBER", "one")
    pixels = np.zeros((batch, 32, 32, 3), np.uint8)
    encoded = [jpeg(image) for image in pixels]
    with region(pixels.nbytes, "es-test") as file:
        register(server.url, file)
        for form in (*FORMS, shared(file, REGION)):
            one = cost("32x32", form, pixels if form.of == "pixels" else encoded, 0, ask)
            # JSON of 16 images has more numbers than are taken.
            is_sent = form.way is not None and not (batch == 16 and "nested" in form.name)
            assert (one.p50_ms is not None) == is_sent, form.name
