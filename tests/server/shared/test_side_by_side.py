"""A client that has its own copy of our messages, in one environment and one process with this application."""

import sysconfig

import numpy as np
import pytest

from tests.environments import ask
from tests.levels import expected
from tests.server.shared.conftest import HERE
from tests.server.shared.servers import only

pytestmark = only(1)


@pytest.mark.parametrize("first", ["tritonclient.grpc", "graph.app"])
def test_tritonclient_and_ensemble_serving_share_an_environment_and_a_process(server, pythons, picture, first):
    packages = sysconfig.get_path("purelib")
    answers = ask(pythons("tritonclient"), HERE / "side_by_side_script.py", first, packages, server.grpc, picture)
    for client in ("theirs", "ours"):
        np.testing.assert_allclose(answers[client], [expected(250)], atol=1e-5)
    assert answers["unmet"] == []
    assert answers["protobuf"] < "7"
