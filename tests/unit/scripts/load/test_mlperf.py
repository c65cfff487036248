import pytest

from scripts.load import mlperf
from tests.local_servers import HttpServer, Reply
from tests.unit.scripts.load.loads import target

pytest.importorskip("mlperf_loadgen")
IMAGES = [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("scenario", mlperf.SCENARIOS)
def test_each_scenario_sends_what_mlperf_wants_and_is_judged_by_it(scenario):
    with HttpServer(lambda asked: Reply(delay_s=0.002)) as server:
        plan = mlperf.Plan(scenario, seconds=0.5, rate=100, slo_ms=500, percentile=90)
        result = mlperf.run(target(server.url, IMAGES, timeout_s=10), plan)
    assert {asked.body for asked in server.asked} <= set(IMAGES)
    assert mlperf.SCENARIOS[scenario] in result.summary.replace(" ", "")
    assert result.failed == 0
    assert result.valid == ("Result is : VALID" in result.summary)
    if scenario == "offline":
        # One query of all samples, of which so many are under way.
        assert len(server.asked) >= 50
        assert 1 < server.connections <= 32


def test_a_server_that_misses_the_objective_is_invalid():
    with HttpServer(lambda asked: Reply(delay_s=0.1)) as server:
        plan = mlperf.Plan("server", seconds=0.5, rate=30, slo_ms=10, percentile=90)
        result = mlperf.run(target(server.url, IMAGES), plan)
    assert not result.valid
    assert "INVALID" in result.summary


def test_a_request_that_fails_makes_the_result_invalid():
    with HttpServer(lambda asked: Reply(500 if asked.number == 3 else 200, b"oh")) as server:
        result = mlperf.run(target(server.url, IMAGES), mlperf.Plan("singlestream", 0.3, 1, 0, 90))
    assert (result.valid, result.failed) == (False, 1)
    assert "500" in result.first_error
