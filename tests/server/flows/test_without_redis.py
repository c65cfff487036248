"""A server of this folder once its Redis is gone."""

import pytest

from tests.redis import running as redis_server
from tests.server.flows.conftest import SURE
from tests.server.server import post


@pytest.mark.parametrize("server", ["separate"], indirect=True)
def test_while_redis_is_down_there_is_no_cache_one_line_in_the_log_and_no_error(server, picture):
    def lines():
        logs = (path.read_text() for path in server.ray_logs("serve/replica_ensemble_Ingress*.log"))
        return "".join(logs).count("Redis does not answer")

    image, before = picture(SURE), lines()
    post(server, image)
    assert post(server, image).json()["cache"]["hit"]
    redis_server.process.kill()
    redis_server.process.wait()
    answers = [post(server, image) for _ in range(5)]
    assert [(answer.status_code, answer.json()["cache"]) for answer in answers] == [(200, {"hit": False})] * 5
    assert lines() == before + 1
