import asyncio
import os
import pty
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization

from deployments.contract.errors import (
    ConfigurationError,
    DeadlineExceeded,
    InferenceFailed,
    RemoteUnavailable,
)
from deployments.contract.item import Item
from deployments.contract.member import MemberInterface
from deployments.contract.nodes import Remote
from deployments.contract.preprocessing import Preprocessing
from ensemble_interop.remote.calls import parse
from ensemble_interop.remote.client import InvalidResponse, TimedOut
from ensemble_interop.remote.open_inference import OpenInference, output_array
from tests.batches import batch, errors, notes
from tests.model_server import UNIFORM, Abort, StandIn, certificate
from tests.server.server import free_ports

LABELS = tuple("abcd")
PIXELS = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)


def config(way, port, **more):
    return OpenInference(kind="open_inference", name="m", url=f"{way}://127.0.0.1:{port}", **more)


def made(config):
    return config.make(None, MemberInterface(Preprocessing((8, 8)), LABELS), 8)


@pytest.fixture(params=["http", "grpc"])
def way(request):
    return request.param


@pytest.fixture
async def stand_in(way):
    """A stand-in that listens, and a member that asks it."""
    server = StandIn()
    port = await server.start(way)
    yield server, made(config(way, port))
    await server.stop()


async def answered(node):
    """Ask until there is an answer."""
    async with asyncio.timeout(30):
        while errors(answer := await node(batch(PIXELS))):
            await asyncio.sleep(0.02)
    return answer


async def test_a_server_that_comes_goes_and_comes_back(way):
    [port] = free_ports(1)
    node = made(config(way, port, retries=0))
    assert isinstance(node, Remote)
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {RemoteUnavailable}
    for _ in range(2):
        server = StandIn()
        await server.start(way, port)
        answer = await answered(node)
        assert [item.versions for item in answer.items] == [{"m": "10"}] * 2
        assert node.addresses() == (1, 0)
        await server.stop()
        for _ in range(7):
            assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {RemoteUnavailable}
        # It is left alone, so nobody waits for it.
        assert node.addresses() == (0, 1)


async def test_a_server_that_described_nonsense_is_asked_again(stand_in):
    server, node = stand_in
    # More digits than Python reads as a number.
    server.versions = ["1" * 5000]
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {RemoteUnavailable}
    server.versions = ["9", "10"]
    assert not errors(await answered(node))


async def test_an_address_that_is_closed_is_not_probed_though_its_last_calls_fail(stand_in):
    _, node = stand_in
    await answered(node)
    [endpoint] = node._endpoints._known.values()
    await endpoint.close()
    probing = endpoint._probing
    for _ in range(2 * node._config.break_after):
        endpoint.failed(TimedOut("no answer in time"))
    assert endpoint._probing is probing


NONSENSE = {
    "rows": lambda rows: np.tile(UNIFORM, (rows + 1, 1)),
    "classes": lambda rows: np.full((rows, 5), 0.2),
    "dimensions": lambda rows: np.full((rows, 4, 2), 0.125),
    "nan": lambda rows: np.full((rows, 4), np.nan),
    "infinite": lambda rows: np.full((rows, 4), np.inf),
    "huge": lambda rows: np.full((rows, 4), 3e38),
    "negative": lambda rows: np.tile([2, -1, 0, 0], (rows, 1)),
    "logits": lambda rows: np.tile([1, 2, 3, 4], (rows, 1)),
}


@pytest.mark.parametrize("kind", NONSENSE)
async def test_nonsense_is_the_members_failure(stand_in, kind):
    server, node = stand_in
    server.behave = NONSENSE[kind]
    answer = await node(batch(PIXELS))
    assert {type(error) for error in errors(answer).values()} == {InferenceFailed}
    assert len(errors(answer)) == 2
    server.behave = StandIn().behave
    np.testing.assert_array_equal((await node(batch(PIXELS))).payload, np.tile(UNIFORM, (2, 1)))


async def test_an_output_of_another_name_is_nonsense(stand_in):
    server, node = stand_in
    server.output = "embedding"
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {InferenceFailed}


async def test_a_long_version_is_cut_and_shows_it(stand_in):
    server, node = stand_in
    for server.version, told in (("9" * 64, "9" * 64), ("9" * 65, f"{'9' * 61}..."), ("9" * 10_000, f"{'9' * 61}...")):
        assert [item.versions for item in (await node(batch(PIXELS))).items] == [{"m": told}] * 2


def test_values_are_counted_before_they_are_made():
    def decode(_):
        raise AssertionError

    with pytest.raises(InvalidResponse, match="more than 10 values"):
        parse(b"[" + b"1," * 11 + b"1]", decode, 10)

    class Extents(list):
        def __iter__(self):
            raise AssertionError

    with pytest.raises(InvalidResponse, match=r"its declared shape \[4, 4,"):
        output_array("FP32", Extents([4] * 1000), bytes(16), [])
    # The extents that are not read are no reason to take the first ones for the shape.
    with pytest.raises(InvalidResponse, match=r"its declared shape \[1, 1,"):
        output_array("FP32", [1] * 64 + [7], bytes(4), [])


async def test_one_image_of_nonsense_fails_alone(stand_in):
    server, node = stand_in
    server.behave = lambda rows: np.array([[0.1, 0.2, 0.3, 0.4], [1, 1, 1, 1]])
    answer = await node(batch(PIXELS))
    assert answer.live == [0]
    np.testing.assert_allclose(answer.payload, [[0.1, 0.2, 0.3, 0.4]], rtol=1e-6)


async def test_logits_and_ones_at_the_end_become_probabilities(way):
    server = StandIn(lambda rows: np.tile(np.log([0.1, 0.2, 0.3, 0.4]) + 7, (rows, 1)).reshape(rows, 4, 1, 1))
    port = await server.start(way)
    answer = await made(config(way, port, scores="logits"))(batch(PIXELS))
    np.testing.assert_allclose(answer.payload, [[0.1, 0.2, 0.3, 0.4]] * 2, rtol=1e-5)
    await server.stop()


@pytest.mark.parametrize(
    ("code", "calls", "kind"),
    [
        ("UNAVAILABLE", 3, RemoteUnavailable),
        ("INVALID_ARGUMENT", 1, InferenceFailed),
        ("INTERNAL", 1, InferenceFailed),
    ],
)
async def test_only_what_may_be_retried_is(stand_in, code, calls, kind):
    server, node = stand_in
    asked = []

    def abort(rows):
        asked.append(rows)
        raise Abort(code)

    server.behave = abort
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {kind}
    assert len(asked) == calls


async def test_a_retry_that_succeeds_is_an_answer(stand_in):
    server, node = stand_in
    outcomes = iter([Abort("UNAVAILABLE"), np.tile(UNIFORM, (2, 1))])

    def second(rows):
        if isinstance(outcome := next(outcomes), Abort):
            raise outcome
        return outcome

    server.behave = second
    answer = await node(batch(PIXELS))
    assert not errors(answer)
    assert notes(answer)[0].attributes["ensemble.remote.tries"] == 2


async def test_the_deadline_is_carried_and_kept(stand_in, way):
    server, node = stand_in
    await node(batch(PIXELS))
    forever = asyncio.Event()

    async def hang(rows):
        await forever.wait()
        return np.tile(UNIFORM, (rows, 1))

    server.behave = hang
    answer = await node(batch(PIXELS, *[Item(deadline=time.time() + 0.3)] * 2))
    assert {type(error) for error in errors(answer).values()} == {DeadlineExceeded}
    if way == "grpc":
        assert 0 < server.seconds_left[-1] < 1
    forever.set()
    server.behave = StandIn().behave
    # One caller in a hurry does not make the server a bad one.
    assert not errors(await node(batch(PIXELS)))


async def test_a_model_that_is_replaced_by_one_with_other_tensors_is_called_by_its_own(stand_in, caplog):
    caplog.set_level("INFO", "ray.serve")
    server, node = stand_in
    await answered(node)
    server.output = server.described = "other"
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {InferenceFailed}
    await answered(node)
    # One that is as before is described again, too, which is no news.
    server.behave = lambda rows: np.zeros((rows, 3))
    for _ in range(3):
        assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {InferenceFailed}
    server.behave = StandIn().behave
    await answered(node)
    assert caplog.text.count("is healthy") == 2
    server.shape = (-1, 16, 16, 3)
    server.output = "yet another"
    await node(batch(PIXELS))
    async with asyncio.timeout(30):
        while "its model takes (16, 16)" not in caplog.text:
            await asyncio.sleep(0.01)
    assert node.addresses() != (1, 0)


async def test_the_trace_goes_on_below_the_members_span(stand_in):
    server, node = stand_in
    trace = "c" * 32
    items = Item(trace_parent=f"00-{'a' * 32}-{'b' * 16}-00"), Item(trace_parent=f"00-{trace}-{'d' * 16}-01")
    [note] = notes(await node(batch(PIXELS, *items)))
    assert server.headers[-1]["traceparent"] == f"00-{trace}-{note.span}-01"


async def test_calls_are_spread_over_every_address_and_a_dead_one_costs_none(way, monkeypatch):
    [port] = free_ports(1)
    hosts = [f"127.0.0.{number}" for number in (1, 2, 3)]
    servers = {host: StandIn() for host in hosts}
    for host, server in servers.items():
        await server.start(way, port, host)
    found = list(hosts)

    async def resolve(host, port):
        return list(found)

    monkeypatch.setattr("ensemble_interop.remote.endpoints.resolve", resolve)
    monkeypatch.setattr("ensemble_interop.remote.endpoints.RESOLVE_EVERY_S", 0)
    node = made(config(way, port).model_copy(update={"url": f"{way}://many:{port}"}))
    await answered(node)
    while len(await node._endpoints.healthy(1)) < 3:
        await asyncio.sleep(0.01)
    before = Counter({host: len(server.headers) for host, server in servers.items()})
    for _ in range(30):
        assert not errors(await node(batch(PIXELS)))
    after = Counter({host: len(server.headers) for host, server in servers.items()})
    assert after - before == dict.fromkeys(hosts, 10)
    await servers[hosts[0]].stop()
    for _ in range(30):
        assert not errors(await node(batch(PIXELS)))
    # One that the name has no more is not asked.
    found.remove(hosts[1])
    while hosts[1] in node._endpoints._known:
        await node(batch(PIXELS))
    before = len(servers[hosts[1]].headers)
    for _ in range(10):
        assert not errors(await node(batch(PIXELS)))
    assert len(servers[hosts[1]].headers) == before
    for host in hosts[1:]:
        await servers[host].stop()


async def test_a_token_is_sent_and_read_again_when_it_changes(way, tmp_path):
    server, file = StandIn(), tmp_path / "token"
    port = await server.start(way)
    node = made(config(way, port, token_file=file))
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {RemoteUnavailable}
    file.write_text("first\n")
    await answered(node)
    assert server.headers[-1]["authorization"] == "Bearer first"
    file.with_name("next").write_text("second")
    file.with_name("next").rename(file)
    await node(batch(PIXELS))
    assert server.headers[-1]["authorization"] == "Bearer second"
    await server.stop()


async def test_tls_is_verified_by_name_though_an_address_is_called(way, tmp_path, monkeypatch):
    files = tmp_path / "key.pem", tmp_path / "ca.pem"
    for file, content in zip(files, certificate("models.test"), strict=True):
        file.write_bytes(content)
    server = StandIn()
    port = await server.start(way, key=files[0], certificate=files[1])

    async def resolve(host, port):
        return ["127.0.0.1"]

    monkeypatch.setattr("ensemble_interop.remote.endpoints.resolve", resolve)
    for name, kind in (("models.test", None), ("other.test", RemoteUnavailable)):
        member = OpenInference(
            kind="open_inference", name="m", url=f"{way}s://{name}:{port}", ca_file=files[1], retries=0
        )
        found = {type(error) for error in errors(await made(member)(batch(PIXELS))).values()}
        assert found == ({kind} if kind else set())
    await server.stop()


async def test_the_certificate_of_a_server_that_an_ipv6_address_names_is_verified(way, tmp_path):
    files = tmp_path / "key.pem", tmp_path / "ca.pem"
    for file, content in zip(files, certificate("models.test"), strict=True):
        file.write_bytes(content)
    server = StandIn()
    port = await server.start(way, host="::1" if way == "http" else "[::1]", key=files[0], certificate=files[1])
    member = OpenInference(kind="open_inference", name="m", url=f"{way}s://[::1]:{port}", ca_file=files[1])
    assert not errors(await made(member)(batch(PIXELS)))
    await server.stop()


def test_an_encrypted_key_is_an_error_and_the_terminal_is_not_asked_for_its_password(tmp_path):
    key, pem = certificate("models.test")
    encryption = serialization.BestAvailableEncryption(b"word")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    (tmp_path / "key.pem").write_bytes(serialization.load_pem_private_key(key, None).private_bytes(*form))
    (tmp_path / "cert.pem").write_bytes(pem)
    code = f"""
from ensemble_interop.remote.calls import connect_to
from ensemble_interop.remote.open_inference import OpenInference
files = {{"cert_file": "{tmp_path}/cert.pem", "key_file": "{tmp_path}/key.pem"}}
config = OpenInference(kind="open_inference", name="m", url="https://h:1", **files)
connect_to(config, "127.0.0.1", 1)._connect()
"""
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, stdin=theirs, start_new_session=True, capture_output=True, text=True, timeout=300)
    os.close(terminal)
    os.close(theirs)
    assert "the key is encrypted" in ended.stderr


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(stand_in, caplog):
    server, node = stand_in
    server.behave = lambda rows: np.zeros((rows, 400_000))
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {InferenceFailed}
    assert "more than 1" in caplog.text or "larger than max" in caplog.text


async def test_a_model_that_does_not_fit_is_not_asked(way):
    server = StandIn(shape=(-1, 16, 16, 3))
    port = await server.start(way)
    assert {type(error) for error in errors(await made(config(way, port))(batch(PIXELS))).values()} == {
        RemoteUnavailable
    }
    assert not server.headers
    await server.stop()


async def test_a_model_of_a_fixed_number_of_images_is_asked_for_so_many(way):
    server = StandIn(shape=(2, 8, 8, 3))
    asked = []
    server.behave = lambda rows: asked.append(rows) or np.tile(UNIFORM, (rows, 1))
    port = await server.start(way)
    answer = await made(config(way, port))(batch(np.zeros((5, 8, 8, 3), np.uint8)))
    assert answer.payload.shape == (5, 4)
    assert asked == [2, 2, 2]
    await server.stop()


async def test_when_a_part_of_a_batch_has_failed_the_server_no_longer_works_on_the_others(way):
    server, waits, ended = StandIn(), asyncio.Event(), asyncio.Event()

    async def hang():
        waits.set()
        await ended.wait()

    async def fail():
        await waits.wait()
        raise Abort("INTERNAL")

    parts = iter([fail(), hang()])
    server.behave = lambda rows: next(parts)
    port = await server.start(way)
    node = made(config(way, port, max_batch_size=1, timeout_ms=60_000))
    assert {type(error) for error in errors(await node(batch(PIXELS))).values()} == {InferenceFailed}
    [endpoint] = await node._endpoints.healthy(1)
    async with asyncio.timeout(30):
        while endpoint.in_flight:
            await asyncio.sleep(0)
    ended.set()
    await server.stop()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://h:1"}, "is no URL of a server"),
        ({"url": "http://models..test:1"}, "is no URL of a server"),
        ({"url": "http://h:99999"}, "is no URL of a server"),
        ({"url": "grpc://h:1/path"}, "url"),
        ({"url": "http://user:word@h:1"}, "token_file"),
        ({"url": "http://:word@h:1"}, "token_file"),
        ({"url": "grpc://far:1", "token_file": "t"}, "grpcs"),
        ({"url": "http://h:1", "ca_file": "c"}, "https"),
        ({"url": "https://h:1", "cert_file": "c"}, "key_file"),
        ({"url": "http://h:1", "scale": (0, 1, 1)}, "greater than 0"),
        ({"url": "http://h:1", "border": (300, 0, 0)}, "less than or equal to 255"),
    ],
)
def test_a_wrong_field_is_told(fields, message):
    with pytest.raises(ValueError, match=message):
        OpenInference(kind="open_inference", name="m", **fields)


def test_without_a_server_the_configuration_is_what_is_told(caplog):
    [port] = free_ports(1)
    told = config("http", port, labels=LABELS, size=(8, 8)).signature(None)
    assert (told.labels, told.classes, told.size, told.version) == (LABELS, 4, (8, 8), None)
    assert "asked again" in caplog.text
    with pytest.raises(ConfigurationError, match="labels"):
        config("http", port, labels="nowhere.txt").signature(None)
