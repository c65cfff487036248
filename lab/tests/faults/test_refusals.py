import pytest

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.load.records import LOST
from lab.faults import refusals
from lab.faults.refusals import COLUMNS, LOADS, Obeying, note, result, sent
from lab.rows import table
from packages.capacity.tests.load.loads import made
from tests.local_servers import HttpServer, Reply, refusal


def test_the_rate_is_of_what_is_answered_until_the_end_of_the_load(monkeypatch):
    with HttpServer(lambda asked: refusal(10) if asked.number % 2 else Reply(delay_s=0.02)) as server:
        monkeypatch.setattr(refusals, "HTTP_PORT", server.port)
        found, rate = sent([b"a", b"b"], Obeying(2), 0.5)
    assert len(found) == len(server.asked)
    assert 0 < rate <= (found["status"] == 200).sum() / 0.5


def test_a_client_that_obeys_comes_again_with_the_same_image_when_it_may(monkeypatch):
    refused = set()

    def answer(asked):
        if asked.body in refused:
            refused.remove(asked.body)
            return Reply()
        refused.add(asked.body)
        return refusal(20)

    images = [b"%d" % number for number in range(50)]
    with HttpServer(answer) as server:
        monkeypatch.setattr(refusals, "HTTP_PORT", server.port)
        found, _ = sent(images, Obeying(2), 0.5)
    assert len(found) > 10
    bodies = [asked.body for asked in server.asked]
    assert all(bodies.count(body) == 2 for body in bodies[:10])


def test_what_a_load_came_to():
    found = made(
        (0, 0, 1, 200, 0),
        (0, 0, 2, 200, 0),
        (0, 0, 1, 503, 0),
        (0, 0, 1, 503, 0),
        (0, 0, 1, LOST, 0),
        (0, 0, 1, 500, 0),
        (0, 0, 1, 500, 0),
    )
    told = result(found, 40.0, 50.0, 3.0)
    assert (told["share"], told["refused"], told["failed"]) == (0.8, 2, 3)
    assert told["others"] == {"500": 2, "no connection": 1}
    assert told["p99_ms"] == pytest.approx(2000)


def test_each_load_is_as_it_says():
    assert [load.mode(100.0) for load in LOADS] == [Closed(500), Arrivals(300.0), Obeying(200)]


def test_a_line_of_the_table():
    row = {"what": "a load", "rate": 10.4, "share": 0.951, "refused": 1234, "failed": 0, "others": {}}
    row |= {"p99_ms": 1500.2, "growth_mb": 3.6}
    [line] = table(COLUMNS, [row]).lines
    assert line == ["a load", "10", "0.95", "1,234", "0", "1,500", "+4 MB"]
    assert note(row) == ""
    assert "2 with 500" in note({**row, "others": {"500": 2}})
