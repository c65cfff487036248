"""What must be alike over HTTP, gRPC and a handle."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import ray

from deployments.contract.answer import Classification
from deployments.contract.errors import InvalidImage
from tests import pictures
from tests.levels import expected, level
from tests.networks import CLASSES
from tests.server.clients import Grpc, Handle, Http, assert_error
from tests.server.server import eventually, post
from tests.server.shared.servers import only


@pytest.fixture(params=["http", "grpc", "handle"])
def client(request, server):
    made = {
        "http": lambda: Http(server),
        "grpc": lambda: Grpc(server),
        "handle": lambda: Handle(request.getfixturevalue("handle")),
    }[request.param]()
    yield made
    made.close()


@pytest.fixture
def configured(server):
    """Changes the ingress' `user_config` for one test; waits until the change is in force."""

    def configure(user_config, in_force):
        server.reconfigure(user_config)
        assert eventually(in_force), f"{user_config} did not come into force"

    yield configure
    server.reconfigure({})
    assert eventually(lambda: len(post(server, level(1)).json()["top"]) == 1)


def test_the_same_answer(client):
    assert client.classify(level(250)) == ("ok", CLASSES[expected(250).argmax()])


@pytest.mark.parametrize(
    ("image", "options", "code"),
    [
        (b"no image", {}, "invalid_image"),
        (b"", {}, "invalid_image"),
        (pictures.jpeg(480, 640)[:9000], {}, "invalid_image"),
        (pictures.bomb(), {}, "image_too_large"),
        (bytes(11 * 2**20), {}, "image_too_large"),
        (level(1), {"top_k": 9}, "invalid_parameter"),
        (level(1), {"timeout_ms": -1}, "invalid_parameter"),
    ],
    ids=["garbage", "empty", "truncated", "bomb", "bytes", "top_k", "timeout"],
)
def test_a_clients_mistake(client, image, options, code):
    assert_error(client.classify(image, **options), code)
    assert client.classify(level(250))[0] == "ok"


def test_user_config_changes_without_a_restart_and_a_bad_value_is_refused(server, configured):
    # `nodes` reaches inline nodes only, so this shows it where it applies, and the ingress' own fields everywhere.
    inline = "separate" not in str(server.content["applications"][0]["args"])
    if inline:
        change = {"nodes": {"Labeler": {"top_k": 3}, "Combiner": {"weights": {"six": 1}}}}
        configured(change, lambda: len(post(server, level(10)).json()["top"]) == 3)
        assert post(server, level(10)).json()["probability"] == pytest.approx(0.8, abs=1e-5)
    else:
        server.reconfigure({"top_k": 3}, "Labeler")
        assert eventually(lambda: len(post(server, level(10)).json()["top"]) == 3)
        server.reconfigure({"weights": {"six": 1}}, "Combiner")
        assert eventually(lambda: post(server, level(10)).json()["probability"] == pytest.approx(0.8, abs=1e-5))
    before = post(server, level(10)).json()["probability"]
    server.reconfigure(
        {"nodes": {"Combiner": {"weights": {"nobody": 1}}}} if inline else {"weights": {"nobody": 1}},
        "Ingress" if inline else "Combiner",
    )
    logs = server.ray_logs(f"serve/replica_ensemble_{'Ingress' if inline else 'Combiner'}_*.log")
    assert eventually(lambda: any("no member 'nobody'" in log.read_text() for log in logs))
    answer = post(server, level(10))
    assert answer.status_code == 200
    assert answer.json()["probability"] == before


def test_a_handle_gives_a_classification_and_typed_errors(handle):
    answer = handle.classify.remote(level(250), top_k=2, members=True).result(timeout_s=60)
    assert isinstance(answer, Classification)
    assert len(answer.top) == 2
    assert answer.members["brightness"].label == "level7"
    with pytest.raises((InvalidImage, ray.exceptions.RayTaskError)) as caught:
        handle.classify.remote(b"no").result(timeout_s=60)
    assert isinstance(caught.value, InvalidImage)
    assert (
        caught.value.message
        == "the body is not an image; send a JPEG, PNG, WebP, BMP, GIF, TIFF, PNM, JPEG 2000 or AVIF file"
    )


def test_a_clients_mistake_is_not_logged_as_the_servers(server):
    """But for the handle, whose error must be raised, and Serve logs what is raised."""
    logs = server.ray_logs("serve/replica_ensemble_Ingress_*.log")
    assert logs

    def tracebacks():
        return sum(log.read_text().count("Traceback") for log in logs)

    before = tracebacks()
    for client in (Http(server), Grpc(server)):
        assert client.classify(b"no image")[0] == "error"
        assert client.classify(level(1), top_k=9)[0] == "error"
        client.close()
    # An error makes Serve flush its log.
    server.reconfigure({"max_batch_size": 0})
    assert eventually(lambda: any("user_config refused" in log.read_text() for log in logs))
    server.reconfigure({})
    assert tracebacks() == before


@only(2)
def test_a_client_that_leaves_takes_nobody_along(server):
    """Impatient clients share batches with patient ones."""
    image = pictures.jpeg(1500, 2000)

    def leave(_):
        with contextlib.suppress(httpx.TransportError), httpx.Client() as client:
            client.post(f"{server.url}/classify", content=image, timeout=httpx.Timeout(0.02, connect=5))

    with ThreadPoolExecutor(16) as pool:
        leaving = [pool.submit(leave, i) for i in range(60)]
        staying = [pool.submit(post, server, level(250)) for _ in range(60)]
        assert {future.result().status_code for future in staying} == {200}
        for future in leaving:
            future.result()
