"""The fuzzers: inputs are of their seed alone, go to whatever is served, and what comes back is judged."""

import asyncio
import subprocess
import sys
import time
from collections import Counter
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
from lab.faults.fuzz.bodies import UNLISTED, example
from lab.faults.fuzz.command import LARGE, SHARES, Corpus
from lab.faults.fuzz.grpc import GrpcFuzzer
from lab.faults.fuzz.http import NOBODY, routes
from lab.faults.fuzz.inputs import CASES, MOST_BYTES, Input, stretched
from lab.faults.fuzz.runner import Cost, Runner, families
from lab.faults.fuzz.sending import Sender, is_typed, is_whole
from lab.faults.fuzz.watching import Bystander, Memory, judged, private_bytes
from packages.capacity.tests.load.loads import made
from tests.door import Door
from tests.local_servers import HttpServer, Reply

SEED, KEY = 5, "ens_key"
# A head of HTTP, whose parts may be large themselves.
HEAD_BYTES = 256 * 1024
CHEAP = Cost(3, "POST /classify", "bodies: nothing", True, 100, "400", 0.1, wait_s=0.1)
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
def corpus(document):
    return Corpus(document, SEED, KEY)


@pytest.fixture(scope="module")
def small(document):
    return Corpus(document, SEED, KEY, 2**16)


def test_an_input_is_made_of_its_seed_and_number(document, small):
    again, other = Corpus(document, SEED, KEY, 2**16), Corpus(document, SEED + 1, KEY, 2**16)
    assert [small.made(number) for number in range(40)] == [again.made(number) for number in range(40)]
    assert [small.made(number).where for number in range(8)] != [other.made(number).where for number in range(8)]


def test_every_route_is_covered(http, document):
    covered = {endpoint.path for endpoint in routes(document).values()}
    for template in http._routes:
        asked = template.replace("{version}", "1")
        for parameter in ("{model}", "{region}"):
            asked = asked.replace(parameter, NOBODY)
        assert asked in covered, f"add {template} to UNLISTED: the OpenAPI document leaves it out"


def test_another_name_of_a_path_is_asked_as_that_is(document):
    by_path = routes(document)
    for path, same in UNLISTED.items():
        if same:
            assert (by_path[path].method, by_path[path].schema) == (by_path[same].method, by_path[same].schema)


def test_every_method_of_grpc_is_covered():
    covered = set(GrpcFuzzer().endpoints)
    assert covered == {f"/{one.full_name}/{method.name}" for one in services(None) for method in one.methods}


def test_every_family_has_its_share_and_every_endpoint_its_turn(corpus, small):
    assert sum(SHARES.values()) == 100
    assert set(corpus.kinds) == set(SHARES)
    assert set(small.kinds) == set(SHARES) - set(LARGE)
    seen = Counter(small.made(number).family for number in range(600))
    assert set(seen) == set(small.kinds)
    turns = [small.made(number) for number in range(0, 8 * len(small.endpoints), 4)]
    for with_key in (True, False):
        assert len({each.where for each in turns if each.with_key is with_key}) >= len(small.endpoints) - 5


def test_every_kind_can_be_made_and_is_no_larger_than_what_is_taken_in(small):
    for kinds in small.kinds.values():
        for fuzzer, where, what in kinds[::5]:
            made = fuzzer.made(where, what, KEY, Random(what), 1000)
            assert made.content or made.way == "grpc"
            assert len(made.content) <= MOST_BYTES + HEAD_BYTES
            shown = KEY.encode() in made.content or any(KEY in str(value) for _, value in made.metadata)
            assert shown or not made.with_key or made.way == "http2"


def test_an_input_as_large_as_may_be_is_no_larger_than_what_is_taken_in(corpus):
    sizes = [corpus.made(number).size for number in range(0, 400, 40)]
    assert max(sizes) <= MOST_BYTES + HEAD_BYTES


LONG = [(group, name) for group in CASES if group.startswith("long_") for name in CASES[group]]


@pytest.mark.parametrize(("group", "name"), LONG)
def test_a_long_case_has_about_the_size_that_is_asked(group, name):
    assert len(stretched(100_000, **CASES[group][name])) <= 210_000


@pytest.mark.parametrize("path", ["/classify", "/v2/models/ensemble/infer", "/v1/models/ensemble:predict", "/v2"])
def test_a_request_that_is_blown_up_nowhere_fits_its_schema(document, path):
    [operation] = document["paths"][path].values()
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        made = example(content["schema"], document["components"]["schemas"])
        assert {"inputs", "instances"} & set(made)


@pytest.mark.parametrize("name", images.FORMATS)
def test_what_is_to_be_damaged_was_whole(name):
    decoded = 0
    for number in range(12):
        image = images.well_formed(name, Random(number))
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
    b"hurry": answered(b"504 Late", b""),
    b"wrong": answered(b"422 Wrong", ERROR),
    b"vague": answered(b"422 Wrong", b"no"),
    b"leave": b"",
    b"": answered(b"200 OK"),
}
JUDGED = {
    "good": ({"content": b"x"}, "200", None),
    "failed": ({"content": b"fail"}, "500", "500"),
    "refused": ({"content": b"full"}, "503", None),
    "late": ({"content": b"hurry"}, "504", "504"),
    "late as asked": ({"content": b"hurry", "due": frozenset({"504"})}, "504", None),
    "a typed error": ({"content": b"wrong", "documented": True}, "422", None),
    "an error without a type": ({"content": b"vague", "documented": True}, "422", "422"),
    "an error of another protocol": ({"content": b"vague"}, "422", None),
    "left": ({"content": b"leave"}, "closed", "without an answer"),
    "left with half a request": ({"content": b"leave", "whole": False}, "closed", None),
    "not gRPC": ({"content": b"", "way": "grpc"}, "UNAVAILABLE", "UNAVAILABLE"),
    "frames": ({"content": b"leave", "way": "http2"}, "closed", None),
}


@pytest.mark.parametrize("name", JUDGED)
async def test_what_comes_back_is_judged(name):
    fields, status, failure = JUDGED[name]
    async with Server() as server:
        outcome = await Sender("127.0.0.1", server.port, server.port).send(Input("/a/b", name, **fields))
    assert outcome.status == status
    assert (outcome.failure is None) == (failure is None)
    if failure is not None:
        assert failure in outcome.failure


async def test_a_server_that_is_not_there_has_failed():
    async with Server() as server:
        port = server.port
    outcome = await Sender("127.0.0.1", port, port).send(Input("", "x", b"x"))
    assert (outcome.status, outcome.failure) == ("refused", "the connection was refused")


def test_when_an_answer_is_whole_and_an_error_typed():
    whole = answered(b"200 OK")
    assert is_whole(whole)
    assert not is_whole(whole[:-1])
    assert not is_whole(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert is_whole(b"HTTP/1.1 100 Continue\r\n\r\n" + whole)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert not is_whole(chunked + b"1\r\nx\r\n")
    assert is_whole(chunked + b"1\r\nx\r\n0\r\n\r\n")
    assert is_typed(answered(b"400 Bad", ERROR))
    assert not is_typed(answered(b"400 Bad", b"[]"))
    assert not is_typed(whole)


class Reports:
    """A bystander that waited so long, volley by volley."""

    def __init__(self, *waits, wrong=""):
        self.waits, self.wrong = iter(waits), wrong

    def report(self, since):
        return next(self.waits), self.wrong


async def test_inputs_are_sent_at_once_and_a_bystander_is_heard():
    async with Server() as server:
        sender = Sender("127.0.0.1", server.port, server.port)
        inputs = {number: Input("", f"some: {number}", b"fail" if number % 2 else b"x") for number in range(5)}
        runner = Runner(sender, Reports(0.5))
        costs = await asyncio.to_thread(runner.volley, inputs)
        assert [cost.status for cost in costs] == ["200", "500", "200", "500", "200"]
        assert [cost.number for cost in costs if cost.is_finding] == [1, 3]
        [cost] = await asyncio.to_thread(Runner(sender, Reports(0.1, wrong="dog, not cat")).volley, {0: inputs[0]})
        assert cost.failure == "the bystander was answered dog, not cat"
    [row] = families(costs).lines
    assert row[:4] == ["some", "5", "200 (3), 500 (2)", "2"]
    assert row[-1] in {"1", "3"}


@pytest.mark.parametrize(("waits", "told"), [((0.1,), 0.1), ((0.9, 0.1), 0.1), ((0.9, 0.8, 0.7), 0.7)])
async def test_what_breaks_a_limit_by_chance_is_sent_again(waits, told):
    async with Server() as server:
        runner = Runner(Sender("127.0.0.1", server.port, server.port), Reports(*waits))
        cost = await asyncio.to_thread(runner.cost, 7, Input("", "a: b", b"x"))
    assert cost.wait_s == told


def test_the_limits():
    assert not CHEAP.is_finding
    assert replace(CHEAP, wait_s=0.3).is_finding
    assert not replace(CHEAP, wait_s=0.3, alone=False).is_finding
    assert replace(CHEAP, failure="500").is_finding
    grown = replace(CHEAP, memory=20_000_000)
    assert not grown.is_finding
    assert replace(grown, with_key=False).is_finding
    assert not replace(grown, with_key=False, size=10_000_000).is_finding
    assert CHEAP.record()["finding"] is False


def test_a_family_names_its_worst_input_and_a_failure_is_worse_than_a_cost():
    costs = [CHEAP, replace(CHEAP, number=4, wait_s=9.0), replace(CHEAP, number=5, wait_s=8.0)]
    [row] = families(costs).lines
    assert (row[0], row[5], row[-2:]) == ("bodies", "9.00", ["36.00", "4"])
    [row] = families([*costs, replace(CHEAP, number=6, failure="500 oh")]).lines
    assert (row[3], row[-1]) == ("1", "6")


TAKES = "print(flush=True); input(); taken = b'x' * 50_000_000; print(flush=True); input()"


def test_the_peak_of_memory_is_seen():
    """Of a process that does nothing else; one that tests may free as much as it takes."""
    assert private_bytes(2**22 + 1) == 0
    command = [sys.executable, "-c", TAKES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        memory = Memory(lambda: [process.pid])
        before = memory.begin()
        assert before > 0
        memory.start()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        give_up = time.monotonic() + 60
        while memory.peak < before + 45_000_000:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        memory.stop()
        process.kill()


def test_a_bystander_reports_what_was_wrong():
    later = [Reply(body=b'{"label": "cat"}'), Reply(503, b"full"), Reply(body=b'{"label": "dog"}')]

    def answer(asked):
        assert asked.headers["authorization"] == "Bearer k"
        return later[asked.number] if asked.number < len(later) else later[0]

    with HttpServer(answer) as server, Bystander(server.url, b"image", "k") as bystander:
        while bystander.answers < 5:
            time.sleep(0.01)
        longest_s, wrong = bystander.report(0.0)
        assert longest_s > 0
        assert wrong == "200, or another label"
        assert bystander.report(time.perf_counter())[1] == ""


def test_a_refusal_is_not_wrong_and_another_failure_is():
    assert judged(made((0, 0, 2, 200, RIGHT), (1, 1, 2, 503, 0))) == (2.0, "")
    assert judged(made((0, 0, 1, 200, RIGHT), (1, 1, 2, 500, 0)))[1].startswith("500")
    assert judged(made()) == (0.0, "")
