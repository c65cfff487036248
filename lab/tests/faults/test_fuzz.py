"""The fuzzers: an input follows from its seed, every endpoint receives inputs, and each answer is judged."""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace
from random import Random

import pytest

from deployments.contract.errors import EnsembleError
from deployments.contract.preprocessing import Preprocessing
from deployments.ingress.http import documents
from deployments.ingress.protocol import services
from deployments.transformer import decoding
from deployments.transformer.transformer import TransformerSettings
from ensemble_capacity.load.records import RIGHT
from lab.faults.fuzz import images
from lab.faults.fuzz.command import Corpus, by_family, note
from lab.faults.fuzz.corpus import CASES
from lab.faults.fuzz.requests import FAMILIES, LARGE, MOST_BYTES, NOBODY, Input, filled
from lab.faults.fuzz.runner import Bystander, Runner, Sender, judged, peak, share_of_limit
from packages.capacity.tests.load.loads import made
from tests.door import Door
from tests.local_servers import HttpServer, Reply

SEED, KEY = 5, "ens_key"
# A head of HTTP, whose parts may be large themselves.
HEAD_BYTES = 256 * 1024
CHEAP = {
    "number": 3, "where": "POST /classify", "family": "bodies", "kind": "nothing", "size": 100, "status": "400",
    "failure": "", "seconds": 0.1, "wait_s": 0.1, "memory_mb": 0, "share_of_limit": 0.4, "finding": False,
}  # fmt: skip
ERROR = b'{"error": {"code": "x", "message": "y"}}'


@pytest.fixture(scope="module", autouse=True)
def _():
    """An image of 49 megapixels takes seconds to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "flat", lambda name, edge: name.encode())
        yield


@pytest.fixture(scope="module")
def http():
    return Door()._http


@pytest.fixture(scope="module")
def document(http):
    """Of all routes, also those that this door's settings turn off."""
    return documents.openapi(http._routes)


@pytest.fixture(scope="module")
def small(document):
    return Corpus(document, SEED, KEY, 2**16)


def test_an_input_is_made_of_its_seed_and_number(document, small):
    again, other = Corpus(document, SEED, KEY, 2**16), Corpus(document, SEED + 1, KEY, 2**16)
    numbers = range(8)
    assert [small.made(number) for number in numbers] == [again.made(number) for number in numbers]
    assert [small.made(number).where for number in numbers] != [other.made(number).where for number in numbers]


def test_every_endpoint_is_covered(http, small):
    covered = {at.where.partition(" ")[2] for at in small.endpoints}
    for template in http._routes:
        asked = template.replace("{version}", "1")
        for parameter in ("{model}", "{region}"):
            asked = asked.replace(parameter, NOBODY)
        assert asked in covered, f"add {template} to `unlisted` of the corpus: the OpenAPI document leaves it out"
    methods = {f"/{one.full_name}/{method.name}" for one in services(None) for method in one.methods}
    assert {at.where for at in small.endpoints if at.is_grpc} == methods
    # Each endpoint that takes images has a way to carry them.
    assert {message for message in CASES["messages"]} == {
        at.message.name for at in small.endpoints if at.is_grpc and at.carriers
    }


def test_a_json_body_of_the_corpus_has_the_fields_of_its_route(document):
    for end, body in CASES["documents"].items():
        [path] = [path for path in document["paths"] if path.endswith(end)]
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        assert set(json.loads(filled(body, [b"image"]))) <= set(schema["properties"])
    for path, methods in document["paths"].items():
        takes_json = "application/json" in methods.get("post", {}).get("requestBody", {}).get("content", {})
        assert takes_json == path.endswith(tuple(CASES["documents"])), path


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_makes_inputs_that_are_no_larger_than_the_limit(document, small, family):
    _, fits, make = FAMILIES[family]
    for number, at in enumerate(each for each in small.endpoints if fits(each)):
        for size in (8, 2**10, MOST_BYTES) if number < 2 else (2**10,):
            sent = make(at, Random(f"{family} {number}"), size).keyed(KEY)
            assert sent.where == at.where
            assert sent.kind
            assert sent.content or sent.is_grpc
            assert len(sent.content) <= MOST_BYTES + HEAD_BYTES
            assert sent.is_grpc or (KEY.encode() in sent.content) == bool(sent.key)


def test_every_family_is_drawn_and_large_images_only_where_inputs_may_be_large(document, small):
    assert {small.made(number).family for number in range(400)} == set(FAMILIES) - {LARGE}
    large = Corpus(document, SEED, KEY)._families
    assert set(large) == set(FAMILIES)


@pytest.mark.parametrize("name", images.FORMATS)
def test_an_image_is_whole_before_the_damage(name):
    decoded = 0
    for number in range(12):
        image = images.well_formed(name, number)
        try:
            decoding.decode(image, decoding.read_header(image, TransformerSettings()), [Preprocessing((32, 32))])
            decoded += 1
        except EnsembleError:
            continue
    assert decoded >= 10


class Server:
    """Answers each request by what its bytes ask for."""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _answer(self, reader, writer):
        asked = await reader.read(100_000)
        for word, answer in ANSWERS.items():
            if word in asked:
                writer.write(answer)
                break
        writer.close()


def answered(status, body=b'{"label": "cat"}', more=b""):
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, more, len(body), body)


ANSWERS = {
    b"fail": answered(b"500 Oh", b""),
    b"full": answered(b"503 Full", ERROR, b"Retry-After: 1\r\n"),
    b"wrong": answered(b"422 Wrong", ERROR),
    b"leave": b"",
    b"": answered(b"200 OK"),
}
JUDGED = {
    "good": (Input("GET /", "", b"x"), "200", ""),
    "failed": (Input("GET /", "", b"fail"), "500", "500"),
    "refused": (Input("GET /", "", b"full"), "503", ""),
    "an error of the caller": (Input("GET /", "", b"wrong"), "422", ""),
    "left": (Input("GET /", "", b"leave"), "closed", "without an answer"),
    "left with half a request": (Input("GET /", "", b"leave", whole=False), "closed", ""),
    "not gRPC": (Input("/a/b", "", b""), "UNAVAILABLE", "UNAVAILABLE"),
}


@pytest.mark.parametrize("name", JUDGED)
async def test_what_comes_back_is_judged(name):
    sent, status, failure = JUDGED[name]
    async with Server() as server:
        answer = await Sender("127.0.0.1", server.port, server.port).send(sent)
    assert answer["status"] == status
    assert bool(answer["failure"]) == bool(failure)
    assert failure in answer["failure"]


async def test_a_server_that_is_not_there_has_failed():
    async with Server() as server:
        port = server.port
    answer = await Sender("127.0.0.1", port, port).send(Input("GET /", "", b"x"))
    assert (answer["status"], answer["failure"]) == ("refused", "the connection was refused")


class Reports:
    """A bystander that waited so long, volley by volley."""

    def __init__(self, *waits, wrong=""):
        self.waits, self.wrong = iter(waits), wrong

    def report(self, since):
        return next(self.waits), self.wrong


async def test_inputs_are_sent_at_once_and_a_bystander_is_heard():
    async with Server() as server:
        sender = Sender("127.0.0.1", server.port, server.port)
        content = {0: b"x", 1: b"fail"}
        inputs = {number: Input("GET /", f"{number}", content[number % 2], family="some") for number in range(5)}
        rows = await asyncio.to_thread(Runner(sender, Reports(0.5)).volley, inputs)
        assert [row["status"] for row in rows] == ["200", "500", "200", "500", "200"]
        assert [row["number"] for row in rows if row["finding"]] == [1, 3]
        [row] = await asyncio.to_thread(Runner(sender, Reports(0.1, wrong="dog, not cat")).volley, {0: inputs[0]})
        assert row["failure"] == "the bystander was answered dog, not cat"
    [shown] = by_family(rows)
    assert (shown["family"], shown["inputs"], shown["statuses"], shown["failures"]) == (
        "some",
        5,
        "200 (3), 500 (2)",
        2,
    )
    assert shown["number"] in {1, 3}
    assert note(rows[1]).startswith("1: GET /, some: 1: 500")
    assert note(rows[0]) == ""


@pytest.mark.parametrize(("waits", "told"), [((0.1,), 0.1), ((0.9, 0.1), 0.1), ((0.9, 0.8, 0.7), 0.7)])
async def test_what_breaks_a_limit_by_chance_is_sent_again(waits, told):
    async with Server() as server:
        runner = Runner(Sender("127.0.0.1", server.port, server.port), Reports(*waits))
        row = await asyncio.to_thread(runner.alone, 7, Input("GET /", "a", b"x"))
    assert (row["wait_s"], row["finding"]) == (told, told > 0.25)


async def test_what_fails_once_has_failed(monkeypatch):
    async with Server() as server:
        runner, lost = Runner(Sender("127.0.0.1", server.port, server.port), Reports(*[0.1] * 3)), iter(["ray", "", ""])
        monkeypatch.setattr(runner, "_lost", lambda: next(lost))
        row = await asyncio.to_thread(runner.alone, 7, Input("GET /", "a", b"x"))
    assert (row["failure"], row["finding"]) == ("ray", True)


def test_the_limits():
    shown, large = Input("GET /", "", b"x" * 100, key="key"), Input("GET /", "", b"x" * 10_000_000)
    assert share_of_limit(shown, 0.1, 0) == pytest.approx(0.4)
    assert share_of_limit(shown, 0.3, 0) > 1
    assert share_of_limit(shown, 0.1, 20_000_000) < 1
    assert share_of_limit(replace(shown, key=""), 0.1, 20_000_000) > 1
    assert share_of_limit(large, 0.1, 20_000_000) < 1


def test_a_family_names_its_worst_input_and_a_failure_is_worse_than_a_cost():
    slow = {**CHEAP, "number": 4, "wait_s": 9.0, "share_of_limit": 36.0}
    [row] = by_family([CHEAP, slow, {**CHEAP, "number": 5, "wait_s": 8.0, "share_of_limit": 32.0}])
    assert (row["family"], row["wait_s"], row["share_of_limit"], row["number"]) == ("bodies", 9.0, 36.0, 4)
    [row] = by_family([CHEAP, slow, {**CHEAP, "number": 6, "failure": "500 oh"}])
    assert (row["failures"], row["number"]) == (1, 6)


TAKES = "print(flush=True); input(); taken = b'x' * 50_000_000; del taken; print(flush=True); input()"


def test_the_peak_of_memory_is_seen():
    """Measure a process that does nothing else, and has given the memory back."""
    assert peak(2**22 + 1) == 0
    command = [sys.executable, "-c", TAKES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        before = peak(process.pid, reset=True)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert 45_000_000 < peak(process.pid) - before < 60_000_000
        assert peak(process.pid, reset=True) < before + 5_000_000
        process.kill()


def test_a_bystander_reports_what_was_wrong():
    cat = {"label": "cat", "index": 3, "probability": 0.5, "top": [], "model_versions": {}, "trace_id": "0" * 32}
    later = [Reply(body=json.dumps(cat).encode()), Reply(503, b"full"), Reply(body=b'{"label": "dog"}')]

    def answer(asked):
        assert asked.headers["authorization"] == "Bearer k"
        return later[asked.number] if asked.number < len(later) else later[0]

    with HttpServer(answer) as server, Bystander(server.url, b"image", "k") as bystander:
        while len(bystander.records()) < 5:
            time.sleep(0.01)
        longest_s, wrong = bystander.report(0.0)
        assert longest_s > 0
        assert wrong == "200, or another label"
        assert bystander.report(time.perf_counter())[1] == ""


def test_a_refusal_is_not_wrong_and_another_failure_is():
    assert judged(made((0, 0, 2, 200, RIGHT), (1, 1, 2, 503, 0))) == (2.0, "")
    assert judged(made((0, 0, 1, 200, RIGHT), (1, 1, 2, 500, 0)))[1].startswith("500")
    assert judged(made()) == (0.0, "")
