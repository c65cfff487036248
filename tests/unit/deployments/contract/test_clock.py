"""A system's clock that jumps by an hour, as it does when a virtual machine wakes up or an administrator sets it."""

import itertools
import os
import re
import subprocess
import sys
import time

import pytest

from deployments.contract import clock
from tests import pictures
from tests.networks import constant, one_hot, store
from tests.replica import served

HOUR_NS = 3600 * 10**9
INLINE = {name: {"placement": "inline"} for name in ("transformer", "combiner", "labeler")}


@pytest.fixture
def jumping(monkeypatch):
    """A clock that is an hour late, or early, or right, from one reading to the next."""
    jumps, real = itertools.cycle((-HOUR_NS, 0, HOUR_NS)), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + next(jumps))
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9)


async def test_answers_and_durations_while_the_clock_jumps(tmp_path, jumping):
    store(tmp_path, "one", constant(one_hot(1)))
    args = {"model_repository": str(tmp_path), **INLINE, "members": [{"name": "one", "placement": "inline"}]}
    async with served(args) as client:
        for _ in range(5):
            url = "/classify?timings=true&timeout_ms=20000"
            answer = await client.post(url, content=pictures.jpeg(), headers={"content-type": "image/jpeg"})
            assert answer.status_code == 200, answer.text
            timings = [stage[name] for stage in answer.json()["timings"] for name in ("start_ms", "duration_ms")]
            headers = [float(each) for each in re.findall(r"dur=([-\d.]+)", answer.headers["server-timing"])]
            assert all(0 <= each < 20_000 for each in (*timings, *headers)), (timings, headers)
        statistics = (await client.get("/v2/models/ensemble/stats")).json()["model_stats"][0]["inference_stats"]
        assert all(0 <= each["ns"] < HOUR_NS for each in statistics.values()), statistics


def test_all_processes_of_a_server_have_one_clock(monkeypatch):
    monkeypatch.setenv(clock.SETTING, "")
    clock.start()
    read = [sys.executable, "-c", "from deployments.contract import clock; print(clock.BEHIND_NS)"]
    found = {subprocess.run(read, env=os.environ, capture_output=True, text=True).stdout for _ in range(2)}
    assert found == {f"{os.environ[clock.SETTING]}\n"}


def test_the_clock_is_the_systems_for_those_who_read_times(monkeypatch):
    assert abs(clock.now() - time.time()) < 60
    moment, real = clock.now_ns(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_NS)
    assert abs(clock.by_system_ns(moment) - time.time_ns()) < 60 * 10**9
    assert abs(clock.now_ns() - moment) < 60 * 10**9
