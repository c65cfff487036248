import pytest

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.load.records import LOST, RETRY
from lab.faults import refusals
from lab.faults.refusals import COLUMNS, LOADS, note, result, sent
from lab.rows import table
from packages.capacity.tests.load.loads import made
from tests.local_servers import HttpServer, Reply, refusal


def test_the_rate_is_of_what_is_answered_until_the_end_of_the_load(monkeypatch):
    with HttpServer(lambda asked: refusal(10) if asked.number % 2 else Reply(delay_s=0.02)) as server:
        monkeypatch.setattr(refusals, "HTTP_PORT", server.port)
        found, rate = sent([b"a", b"b"], Closed(2, obey=True), 0.5)
    assert len(found) == len(server.asked)
    assert 0 < rate <= (found["status"] == 200).sum() / 0.5


def test_what_a_load_came_to():
    found = made(
        (0, 0, 1, 200, 0),
        (0, 0, 2, 200, RETRY),
        (0, 0, 1, 503, 0),
        (0, 0, 1, 503, RETRY),
        (0, 0, 1, LOST, 0),
        (0, 0, 1, 500, 0),
        (0, 0, 1, 500, 0),
    )
    told = result(found, 40.0, 50.0, 3.0)
    assert (told["share"], told["refused"], told["failed"]) == (0.8, 2, 3)
    assert told["others"] == {"500": 2, "no connection": 1}
    assert told["p99_ms"] == pytest.approx(2000)
    assert told["at_first_retry"] == 0.5
    assert result(found[:1], 1.0, 1.0, 0.0)["at_first_retry"] is None


def test_each_load_is_as_it_says():
    assert [load.mode(100.0) for load in LOADS] == [Closed(500), Arrivals(300.0), Closed(200, obey=True)]


@pytest.mark.parametrize(("share", "told"), [(0.5, "50.0%"), (None, "")])
def test_a_line_of_the_table(share, told):
    row = {"what": "a load", "rate": 10.4, "share": 0.951, "refused": 1234, "failed": 0, "others": {}}
    row |= {"p99_ms": 1500.2, "at_first_retry": share, "growth_mb": 3.6}
    [line] = table(COLUMNS, [row]).lines
    assert line == ["a load", "10", "0.95", "1,234", "0", "1,500", told, "+4 MB"]
    assert note(row) == ""
    assert "2 with 500" in note({**row, "others": {"500": 2}})
