import asyncio
import logging
import signal

import pytest
import redis

from deployments.contract.errors import ConfigurationError
from ensemble_features.cache import stores
from ensemble_features.cache.stores import OVERHEAD, Memory, Redis
from graph.config import parse
from graph.feature import wanted
from tests.redis import running


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def test_memory_gives_back_what_it_keeps():
    memory = Memory(10_000, 60)
    memory.keep(b"a", b"1")
    memory.keep(b"a", b"22")
    assert await memory.look_up([b"a", b"b"]) == [b"22", None]
    assert (memory.has(b"a"), memory.has(b"b")) == (True, False)
    assert (len(memory), memory.bytes_used) == (1, 1 + 2 + OVERHEAD)


async def test_memory_forgets_what_was_not_used_for_the_longest_time():
    memory = Memory(2 * (OVERHEAD + 11), 60)
    for name in (b"a", b"b"):
        memory.keep(name, bytes(10))
    await memory.look_up([b"a"])
    memory.keep(b"c", bytes(10))
    assert await memory.look_up([b"a", b"b", b"c"]) == [bytes(10), None, bytes(10)]
    assert memory.bytes_used == 2 * (OVERHEAD + 11)


def test_memory_refuses_what_is_larger_than_itself():
    memory = Memory(10_000, 60)
    memory.keep(b"a", b"")
    memory.keep(b"d", bytes(10_000))
    assert (len(memory), memory.bytes_used) == (0, 0)


async def test_memory_forgets_what_is_old():
    clock = Clock()
    memory = Memory(10_000, 60, clock)
    memory.keep(b"a", b"1")
    clock.now = 59.9
    assert await memory.look_up([b"a"]) == [b"1"]
    clock.now = 60.0
    assert not memory.has(b"a")
    assert await memory.look_up([b"a"]) == [None]
    assert memory.bytes_used == 0


def test_a_url_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match=r"cache\.redis"):
        Redis("redis://localhost:port", 60, 1)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(stores, "PAUSE_S", 0.0)


async def kept(store, key, content):
    """Keep it, and wait until Redis has it."""
    store.keep(key, content)
    await asyncio.gather(*store._writes)


async def test_redis_gives_back_what_it_keeps_until_it_is_old(tmp_path):
    with running(tmp_path) as url:
        store = Redis(url, 0.2, 10)
        await kept(store, b"a\0", b"\xff1")
        assert await store.look_up([b"a\0", b"b"]) == [b"\xff1", None]
        async with asyncio.timeout(30):
            while await store.look_up([b"a\0"]) != [None]:
                await asyncio.sleep(0.01)


async def test_while_redis_is_down_there_is_no_cache_and_one_line_in_the_log(tmp_path, caplog, quick):
    with running(tmp_path) as url:
        store = Redis(url, 60, 10)
        await kept(store, b"a", b"1")
        with caplog.at_level(logging.WARNING):
            with running(tmp_path, "second") as other:
                assert other != url
            assert await store.look_up([b"a"]) == [b"1"]
    for _ in range(3):
        assert await store.look_up([b"a"]) == [None]
        await kept(store, b"a", b"2")
    assert [record.getMessage() for record in caplog.records] == [
        "Redis does not answer (ConnectionError); there is no cache until it does"
    ]
    with running(tmp_path):
        assert await store.look_up([b"a"]) == [None]
        await kept(store, b"a", b"3")
        assert await store.look_up([b"a"]) == [b"3"]
    assert [record.getMessage() for record in caplog.records][1:2] == ["Redis answers again"]


async def test_a_redis_that_hangs_is_not_waited_for_and_left_alone_for_a_time(tmp_path, caplog):
    with running(tmp_path) as url:
        store = Redis(url, 60, 0.05)
        assert await store.look_up([b"a"]) == [None]
        process = running.process
        process.send_signal(signal.SIGSTOP)
        try:
            assert await store.look_up([b"a"]) == [None]
            assert "Redis does not answer" in caplog.text
            store._client = None
            assert await store.look_up([b"a"]) == [None]
            store.keep(b"a", b"1")
            assert not store._writes
        finally:
            process.send_signal(signal.SIGCONT)


async def test_a_password_comes_from_a_file_and_is_not_told(tmp_path, caplog):
    (file := tmp_path / "password").write_text("secret\n")
    with running(tmp_path) as url:
        redis.Redis.from_url(url).config_set("requirepass", "secret")
        for user in ("", "default@"):
            store = Redis(url.replace("unix://", f"unix://{user}"), 60, 10, file)
            store.keep(b"a", b"1")
            await asyncio.gather(*store._writes)
            assert await store.look_up([b"a"]) == [b"1"]
        file.write_text("another secret")
        assert await Redis(url, 60, 10, file).look_up([b"a"]) == [None]
    assert "Redis does not answer" in caplog.text
    assert "secret" not in caplog.text


def test_a_password_that_can_not_be_read_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"redis_password_file: can't read .*FileNotFoundError"):
        Redis("redis://localhost", 60, 1, tmp_path / "none")


def test_a_section_says_what_is_wrong_with_it():
    members = {"members": [{"name": "m"}]}
    wanted(parse({**members, "cache": {"max_bytes": "1GiB", "redis": "redis://localhost:6379/0"}}))
    for wrong, told in (
        ({"redis": "http://user:secret@localhost"}, r"cache.redis: a URL begins with one of redis://"),
        ({"redis": "redis://localhost:port"}, r"cache\.redis: "),
        ({"max_bytes": "much"}, r"cache\.max_bytes: "),
    ):
        with pytest.raises(ConfigurationError, match=told):
            wanted(parse({**members, "cache": wrong}))
