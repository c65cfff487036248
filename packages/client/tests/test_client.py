import asyncio
import json
import subprocess
import sys

import grpc
import pytest

import ensemble_serving
from ensemble_serving import BlockingClient, Client, NoResponse, ResponseTimeout
from ensemble_serving import client as module
from ensemble_serving.errors import EnsembleError, InvalidImage, Overloaded
from ensemble_serving.messages import OverGrpc, OverHttp
from ensemble_serving.protocol import inference_pb2 as pb
from ensemble_serving.transports import Response
from tests.local_servers import GrpcServer, HttpServer, Reply, refusal

ANSWER = {"label": "cat", "index": 3, "probability": 0.5, "top": [], "model_versions": {}, "trace_id": "0" * 32}


def answer(label):
    return json.dumps({**ANSWER, "label": label}).encode()


def error(status, code, message="why"):
    return Reply(status, json.dumps({"error": {"code": code, "message": message}}).encode())


def loaded(statement):
    """The modules that a new process has imported after a statement."""
    script = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_it_needs_neither_ray_nor_openvino():
    heavy = {"ray", "openvino", "cv2", "numpy", "grpc", "google.protobuf", "httpx", "pydantic"}
    assert not loaded("from ensemble_serving import *; Client") & {*heavy, "graph", "deployments", "models", "scripts"}


def test_a_process_that_needs_errors_and_answers_alone_imports_no_transport():
    found = loaded("import ensemble_serving.errors, ensemble_serving.answer, ensemble_serving.url")
    assert not found & {"ensemble_serving.client", "ensemble_serving.transports", "asyncio", "ssl"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Cliend'"):
        ensemble_serving.Cliend  # noqa: B018


async def test_an_image_is_bytes_or_the_path_of_a_file(tmp_path):
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"cat")
    with HttpServer(lambda asked: Reply(body=answer(asked.body.decode()))) as server:
        async with Client(server.url) as client:
            for image in (b"cat", bytearray(b"cat"), memoryview(b"cat"), path, str(path)):
                assert (await client.classify(image)).label == "cat"
            assert [each.result().label async for _, each in client.as_completed([path, b"dog"])] in (
                ["cat", "dog"],
                ["dog", "cat"],
            )
            with pytest.raises(FileNotFoundError, match=r"none\.jpg"):
                await client.classify(tmp_path / "none.jpg")
            with pytest.raises(TypeError, match="bytes, as of a JPEG or PNG file, or a path; this is of type list"):
                await client.classify([1, 2])


async def test_many_are_under_way_and_come_as_they_are_done():
    def reply(asked):
        return Reply(body=answer(asked.body.decode()), delay_s=0.3 if asked.body == b"0" else 0.0)

    read = []

    def images():
        for number in range(12):
            read.append(number)
            yield str(number).encode()

    with HttpServer(reply) as server:
        async with Client(server.url, concurrency=4) as client:
            came = []
            async for position, future in client.as_completed(images(), top_k=1):
                assert future.result().label == str(position)
                came.append(position)
                # As many are read as may be under way, and no more.
                assert len(read) <= len(came) + 4
    assert sorted(came) == list(range(12))
    assert came[-1] == 0
    assert server.connections == 4
    assert {asked.path for asked in server.asked} == {"/classify?top_k=1"}


async def test_a_submitted_image_is_a_future():
    with HttpServer(lambda asked: Reply(body=answer("cat"), delay_s=0.05)) as server:
        async with Client(server.url, key="secret") as client:
            futures = [client.submit(b"x", members=True, headers=(("x-request-id", "1"),)) for _ in range(3)]
            assert not any(future.done() for future in futures)
            assert {(await future).label for future in futures} == {"cat"}
    asked = server.asked[0]
    assert asked.path == "/classify?members=true"
    assert (asked.headers["authorization"], asked.headers["x-request-id"]) == ("Bearer secret", "1")


async def test_a_refusal_is_obeyed_to_the_millisecond():
    loop = asyncio.get_running_loop()
    with HttpServer(lambda asked: Reply(body=answer("cat")) if asked.number else refusal(150)) as server:
        async with Client(server.url) as client:
            began = loop.time()
            assert (await client.classify(b"x")).label == "cat"
            assert 0.15 <= loop.time() - began < 0.9
    assert len(server.asked) == 2


async def test_patience_ends_with_the_servers_error():
    with HttpServer(lambda asked: refusal(50)) as server:
        async with Client(server.url, patience_s=0.2) as client:
            with pytest.raises(Overloaded, match="full") as raised:
                await client.classify(b"x")
    assert raised.value.retry_after_s == 0.05
    assert 2 <= len(server.asked) <= 4


async def test_patience_begins_with_the_first_refusal_and_not_in_the_queue():
    replies = [Reply(body=answer("cat"), delay_s=0.5), refusal(20), Reply(body=answer("dog"))]
    with HttpServer(lambda asked: replies[asked.number]) as server:
        async with Client(server.url, concurrency=1, patience_s=0.3) as client:
            first, second = client.submit(b"x"), client.submit(b"x")
            assert [(await first).label, (await second).label] == ["cat", "dog"]


@pytest.mark.parametrize(("reply", "raised"), [(Reply(delay_s=60), NoResponse), (refusal(30_000), Overloaded)])
async def test_what_is_under_way_when_the_client_is_closed_fails_at_once(reply, raised):
    with HttpServer(lambda asked: reply) as server:
        async with Client(server.url) as client:
            future = client.submit(b"x")
            while not server.asked:
                await asyncio.sleep(0.01)
            # The refusal arrives.
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            with pytest.raises(raised):
                await future


async def test_a_mistake_is_raised_at_once_by_its_code():
    replies = [error(400, "invalid_image"), error(418, "unheard_of", "what"), Reply(502, b"<html>")]
    with HttpServer(lambda asked: replies[asked.number]) as server:
        async with Client(server.url) as client:
            with pytest.raises(InvalidImage, match="why"):
                await client.classify(b"x")
            with pytest.raises(EnsembleError, match="what"):
                await client.classify(b"x")
            with pytest.raises(EnsembleError, match=r"responds with 502: <html>"):
                await client.classify(b"x")


@pytest.mark.parametrize("messages", [OverHttp(), OverGrpc("ensemble")])
@pytest.mark.parametrize("body", [b"", b"<html>welcome"])
def test_a_body_without_a_classification_is_wrong_over_both_protocols(messages, body):
    with pytest.raises(ValueError, match=r"."):
        messages.answer(Response(200, body, (), 0.0, 0.0))


async def test_what_is_no_classification_is_an_error():
    with HttpServer(lambda asked: Reply(body=b"<html>welcome")) as server:
        async with Client(f"{server.url}/below/") as client:
            with pytest.raises(EnsembleError, match="responds '<html>welcome'; is this the ensemble"):
                await client.classify(b"x")
    assert server.asked[0].path == "/below/classify"


async def test_a_lost_connection_is_tried_again_and_a_time_out_is_not(monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.01)
    replies = [Reply(None), Reply(None), Reply(body=answer("cat")), Reply(delay_s=30)]
    with HttpServer(lambda asked: replies[asked.number]) as server:
        async with Client(server.url, timeout_s=0.3) as client:
            assert (await client.classify(b"x")).label == "cat"
            with pytest.raises(ResponseTimeout):
                await client.classify(b"x")
    assert len(server.asked) == 4
    async with Client(server.url, reconnect_s=0.05) as client:
        with pytest.raises(NoResponse, match="no connection"):
            await client.classify(b"x")


async def test_over_grpc_it_is_the_same(monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.01)
    ok = pb.ModelInferResponse()
    ok.parameters["classifications"].string_param = f"[{answer('cat').decode()}]"
    replies = [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded: full", (("grpc-retry-pushback-ms", "10"),)),
        ok.SerializeToString(),
        (grpc.StatusCode.INVALID_ARGUMENT, "invalid_image: why", ()),
    ]
    with GrpcServer(lambda *_: replies.pop(0)) as server:
        async with Client(server.url, key="secret") as client:
            assert (await client.classify(b"image", members=True, quality="full")).label == "cat"
            with pytest.raises(InvalidImage, match="why"):
                await client.classify(b"x")
        method, content, metadata = server.asked[1]
        request = pb.ModelInferRequest.FromString(content)
        assert method == "/inference.GRPCInferenceService/ModelInfer"
        assert (request.model_name, request.inputs[0].name, list(request.inputs[0].shape)) == ("ensemble", "image", [1])
        assert request.raw_input_contents[0] == b"\x05\0\0\0image"
        parameters = {
            name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in request.parameters.items()
        }
        assert parameters == {"top_k": 1, "members": True, "quality": "full"}
        assert metadata["authorization"] == "Bearer secret"
        url = server.url
    async with Client(url, reconnect_s=0.05) as client:
        with pytest.raises(NoResponse, match="no connection"):
            await client.classify(b"x")


async def test_who_leaves_the_loop_leaves_no_request():
    with HttpServer(lambda asked: Reply(body=answer("x"), delay_s=0.0 if asked.number == 0 else 30)) as server:
        async with Client(server.url, concurrency=3) as client:
            async for _ in client.as_completed([b"x"] * 10):
                break
    assert len(server.asked) <= 4


def test_a_program_without_an_event_loop_waits_for_each_answer():
    def reply(asked):
        return error(400, "invalid_image") if asked.body == b"bad" else Reply(body=answer(asked.body.decode()))

    with HttpServer(reply) as server, BlockingClient(server.url, concurrency=2) as client:
        assert client.classify(b"cat").label == "cat"
        with pytest.raises(InvalidImage):
            client.classify(b"bad")
        found = list(client.classify_many([b"cat", b"bad", b"dog", b"emu"]))
        assert [type(each) if isinstance(each, EnsembleError) else each.label for each in found] == [
            "cat", InvalidImage, "dog", "emu"
        ]  # fmt: skip
        assert next(client.classify_many(iter([b"cat", b"dog", b"emu"]))).label == "cat"


def test_the_public_names_are_listed():
    assert {"BlockingClient", "Client", "EnsembleError"} <= set(dir(ensemble_serving))
