import json
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from ensemble_capacity.load import generator as module
from ensemble_capacity.load.load import Arrivals, Closed, marked
from ensemble_capacity.load.records import (
    DEGRADED,
    FAILED,
    LATE,
    LOST,
    RIGHT,
    SHED,
    between,
    late_ms,
    latency_ms,
    ok,
    outcomes,
    quantile,
)
from ensemble_capacity.load.worker import MOST_UNDER_WAY
from packages.capacity.tests.load.loads import sent, target
from scripts.errors import ScriptError
from tests.conftest import ROOT
from tests.local_servers import HttpServer, Reply, refusal

# A server in a process of its own, which a signal can stop.
ALONE = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from tests.local_servers import HttpServer
with HttpServer() as server:
    print(server.url, flush=True)
    threading.Event().wait()
"""


def test_a_closed_loop_has_as_many_under_way_as_it_has_clients():
    with HttpServer(lambda asked: Reply(delay_s=0.02)) as server:
        load = sent(target(server.url), Closed(3), 0.5)
    found = load.records()
    assert server.connections == 3
    assert len(found) == len(server.asked)
    assert outcomes(found) == {"200": len(found)}
    # Three at a time, each of 20 ms.
    assert 9 < len(found) <= 3 * (found["done"].max() - load.began) / 0.02 + 3
    assert quantile(latency_ms(found), 0.1) >= 20
    assert {asked.body for asked in server.asked} == set(target("").images)
    assert server.asked[0].headers["content-type"] == "image/jpeg"
    assert load.cpu_s > 0
    assert load.ended


def every(gap_s):
    """Arrivals in equal distances, for four seconds."""
    return Arrivals(1, times=tuple(n * gap_s for n in range(1, round(4 / gap_s))))


def test_an_open_loop_sends_when_requests_are_due_whatever_becomes_of_them():
    with HttpServer(lambda asked: Reply(delay_s=0.5)) as server:
        load = sent(target(server.url), every(1 / 200), 1.0)
    found = load.records()
    assert len(found) == len(server.asked)
    # What is due after the end, the process sends until it hears of the end.
    due = between(found, "due", load.began, load.began + 1.0)["due"]
    assert len(due) in {199, 200}
    np.testing.assert_allclose(np.diff(due), 1 / 200, atol=1e-6)
    assert due[0] == pytest.approx(load.began + 1 / 200, abs=1e-6)
    # Most of them were under way at once.
    assert server.connections > 80
    assert (late_ms(found) >= 0).all()


def test_recorded_times_are_replayed_to_their_end():
    times = (0.0, 0.01, 0.2, 0.21, 0.4)
    with HttpServer() as server, module.Generator(target(server.url), Arrivals(1, times=times)) as load:
        load.run(30)
        assert load.ended
        assert time.perf_counter() < load.began + 20
    np.testing.assert_allclose(load.records()["due"] - load.began, times, atol=1e-6)


def test_a_server_that_stops_for_a_while_shows_in_the_99th_percentile_of_an_open_loop():
    process = subprocess.Popen([sys.executable, "-c", ALONE, str(ROOT)], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        with module.Generator(target(url), every(1 / 100)) as load:
            load.run(1.0)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            process.send_signal(signal.SIGCONT)
            load.run(3.0)
    finally:
        process.kill()
        process.communicate()
    found = between(load.records(), "due", load.began, load.began + 3.0)
    assert ok(found).all()
    # The 20 requests of those 200 ms are a fifteenth of all. A client that sends its next request when it has the
    # response to its last would have sent one of them.
    assert quantile(latency_ms(found), 99) > 150
    assert (latency_ms(found) > 50).sum() >= 10


def test_what_fails_is_counted_by_what_it_was():
    replies = [Reply(), Reply(500, b"oh no"), Reply(None), Reply(delay_s=30)]
    with HttpServer(lambda asked: replies[asked.number % 4]) as server:
        load = sent(target(server.url, timeout_s=0.3), Arrivals(1, times=(0.0, 0.1, 0.2, 0.3)), 5)
    found = load.records()
    assert found["status"].tolist() == [200, 500, LOST, LATE]
    assert ok(found).tolist() == [True, False, False, False]
    assert load.first_error == "500 oh no"
    assert outcomes(found) == {"200": 1, "500": 1, "no connection": 1, "timeout": 1}


def test_nobody_there_is_asked_a_few_times_a_second():
    load = sent(target("http://127.0.0.1:9"), Closed(2), 0.5)
    assert 2 <= len(load.records()) <= 12
    assert set(load.records()["status"].tolist()) == {LOST}
    assert "no connection to 127.0.0.1:9" in load.first_error


def test_a_client_that_is_refused_asks_at_once():
    with HttpServer(lambda asked: refusal(5000)) as server:
        assert len(sent(target(server.url), Closed(1), 0.3).records()) > 5


def test_answers_show_what_is_right_missing_and_eased():
    answers = [{"label": "cat"}, {"label": "dog", "missing": {"a": "late"}}, {"label": "cat", "load_shed": True}]
    with HttpServer(lambda asked: Reply(body=json.dumps(answers[asked.number % 3]).encode())) as server:
        to = target(server.url, [b"a", b"b", b"c"], labels=("cat", "cat", "dog"))
        found = sent(to, Arrivals(1, times=(0.0, 0.1, 0.2)), 5).records()
    assert found["flags"].tolist() == [RIGHT, DEGRADED, SHED]


def test_a_form_with_an_image_that_failed_has_failed():
    results = [{"label": "cat", "missing": {"a": "late"}}, {"error": {"code": "invalid_image"}}]
    answers = [{"results": results}, {"results": [{"label": "cat"}] * 2}]
    with HttpServer(lambda asked: Reply(body=json.dumps(answers[asked.number % 2]).encode())) as server:
        load = sent(target(server.url, batch=2), Arrivals(1, times=(0.0, 0.1)), 5)
    assert load.records()["flags"].tolist() == [DEGRADED | FAILED, 0]
    assert ok(load.records()).tolist() == [False, True]
    assert "invalid_image" in load.first_error


def test_a_share_of_the_images_has_been_sent_before_and_every_other_is_new():
    with HttpServer() as server:
        sent(target(server.url, repeats=0.5), Closed(4), 0.5)
        bodies = [asked.body for asked in server.asked]
        assert 0.3 < len(set(bodies)) / len(bodies) < 0.7
        assert {body[:2] + body[14:] for body in bodies} == set(target("").images)
        server.asked.clear()
        # Another load has other images.
        for _ in range(2):
            sent(target(server.url, repeats=0.0), Closed(4), 0.2)
        bodies = [asked.body for asked in server.asked]
    assert len(set(bodies)) == len(bodies) > 20


def test_a_marked_photograph_is_the_same_picture():
    photograph = (ROOT / "tests" / "cat.jpg").read_bytes()
    first, second = (marked(photograph, number) for number in range(2))
    assert len({photograph, first, second}) == 3
    decoded = [cv2.imdecode(np.frombuffer(each, np.uint8), cv2.IMREAD_COLOR) for each in (photograph, first, second)]
    assert all((each == decoded[0]).all() for each in decoded)


def test_a_load_that_nobody_can_answer_ends_by_itself():
    with HttpServer(lambda asked: Reply(delay_s=60)) as server:
        to = target(server.url, timeout_s=2.0, connections=2)
        with module.Generator(to, Arrivals(30_000)) as load:
            load.run(20)
            assert load.ended
            assert time.perf_counter() - load.began < 20
        # Many end at once, and none of them is lost.
        assert outcomes(load.records()) == {"timeout": MOST_UNDER_WAY}
        assert load.first_error


def test_a_process_that_does_not_start_is_told(monkeypatch):
    monkeypatch.setattr(module, "WORKER", "raise SystemExit('no')")
    with pytest.raises(ScriptError, match="did not start"), module.Generator(target("http://127.0.0.1:9"), Closed(1)):
        pass


def test_the_records_can_be_read_while_requests_are_sent():
    with HttpServer() as server:
        with module.Generator(target(server.url), Closed(1)) as load:
            while len(load.records()) < 5:
                time.sleep(0.01)
            assert not load.ended
        assert load.ended
    assert len(load.records()) == len(server.asked)
