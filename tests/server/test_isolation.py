"""A decoder that hangs and one that crashes, in a running server: each costs its image and a process."""

import os
import threading

import psutil
import pytest

from tests import decoders, pictures
from tests.server.server import Server, config, eventually, post


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    site = decoders.install(tmp_path_factory.mktemp("site"))
    placed = {"placement": "inline", "decode_timeout_ms": 2000, "threads": 2}
    content = config(repository, "inline", members=("one",), transformer=placed)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Server(content, PYTHONPATH=path) as running:
        yield running


def decoding(server):
    """The processes that decode."""
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        try:
            if "deployments.transformer.isolation.process" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def keepers(server):
    """The processes that those belong to."""
    return {process.parent().pid for process in decoding(server)}


def test_a_decoder_that_crashes_costs_its_image(server):
    [keeper] = keepers(server)
    answer = post(server, decoders.that("crash"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_image")
    for _ in range(3):
        assert post(server, pictures.encode(pictures.grey(10), ".png")).status_code == 200
    assert keepers(server) == {keeper}


def test_a_decoder_that_hangs_costs_its_image_and_holds_up_no_photograph(server):
    [keeper] = keepers(server)
    answers = []
    asking = [
        threading.Thread(target=lambda: answers.append(post(server, decoders.that("hang")).status_code))
        for _ in range(4)
    ]
    for each in asking:
        each.start()
    # While they hang, what is decoded elsewhere is answered.
    assert eventually(lambda: any(process.status() == psutil.STATUS_SLEEPING for process in decoding(server)))
    while len(answers) < len(asking):
        assert post(server, pictures.jpeg()).status_code == 200
    for each in asking:
        each.join()
    assert set(answers) <= {413, 503, 504}
    assert answers.count(413) >= 2
    assert post(server, pictures.encode(pictures.grey(10), ".png")).status_code == 200
    assert keepers(server) == {keeper}
