import os
import signal

import pytest

from scripts.serve.server import has_page, stop_signals
from tests.local_servers import HttpServer, Reply


@pytest.mark.parametrize(("at_the_start", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_stops_what_nohup_has_not_started(at_the_start, stops):
    before = signal.signal(signal.SIGHUP, at_the_start)
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.wait(0) == stops
        assert signal.getsignal(signal.SIGHUP) == at_the_start
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("status", "there"), [(200, True), (404, False)])
def test_the_page_is_named_where_there_is_one(status, there):
    with HttpServer(lambda asked: Reply(status)) as server:
        assert has_page(server.url) == there


def test_no_page_is_named_where_nobody_answers():
    assert not has_page("http://127.0.0.1:1")
