import pytest

from deployments.ingress.listeners import slot
from deployments.ingress.listeners.front import Front
from deployments.ingress.listeners.grpc import GrpcListener
from deployments.ingress.listeners.http import HttpListener
from tests.door import Door


async def test_a_replica_whose_socket_can_not_be_opened_tries_again(tmp_path):
    front = Front(tmp_path, HttpListener(Door()._http), GrpcListener(None, lambda: 1000, []))
    in_the_way = slot.path(tmp_path, "http", 1)
    in_the_way.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="http-1"):
            await front.keep_open()
    in_the_way.rmdir()
    await front.keep_open()
    assert slot.opened(tmp_path) == [1]
    await front.close()
    assert slot.opened(tmp_path) == []
