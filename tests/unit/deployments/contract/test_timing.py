from deployments.contract.item import Note, Step, Timeline
from deployments.ingress.http.server import server_timing
from ensemble_serving.answer import Timing

MS = 1_000_000


def test_a_way_is_the_wait_and_each_nodes_work():
    note = Note("predict one", 1003 * MS, 1004 * MS + 500_000, {}, ("host", 1))
    timeline = Timeline(1000 * MS, 1002 * MS, (Step(note),))
    assert timeline.timings() == (Timing("queue", 0, 2), Timing("predict one", 3, 1.5))
    # A name is a token: https://www.w3.org/TR/server-timing/#the-server-timing-header-field
    assert server_timing(0.0075, timeline) == "total;dur=7.500, queue;dur=2.000, predict-one;dur=1.500"
    assert server_timing(0.0005, None) == "total;dur=0.500"
