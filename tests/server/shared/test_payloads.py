"""Every form of `ensemble experiments payloads` that a protocol takes is answered."""

import httpx
import numpy as np
import pytest

from lab.experiments.forms import FORMS, REGION, answers, region, register, shared
from lab.experiments.payloads import jpeg
from tests.server.shared.servers import only

pytestmark = only(2)


@pytest.fixture
def file(server):
    with region(2 * 32 * 32 * 3, "es-test") as found:
        register(server.url, found)
        yield found
        assert httpx.post(f"{server.url}/v2/systemsharedmemory/region/{REGION}/unregister").status_code == 200


@pytest.mark.parametrize("batch", [1, 2])
def test_each_form_is_answered(server, file, batch):
    urls, pixels = {"http": server.url, "grpc": f"grpc://{server.grpc}"}, np.zeros((batch, 32, 32, 3), np.uint8)
    encoded = [jpeg(image) for image in pixels]
    for form in (*FORMS, shared(file)):
        request = form.encode(pixels if form.of == "pixels" else encoded, "one")
        assert form.way is None or answers(urls[form.way], request), form.name
