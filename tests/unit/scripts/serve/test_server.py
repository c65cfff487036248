import os
import signal

import pytest

from scripts.serve.server import has_page, stop_signals


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


OFF = {"page": {"enabled": False}}


@pytest.mark.parametrize(
    ("args", "there"), [(None, True), ({"page": {}}, True), (OFF, False), ({"features": OFF}, False)]
)
def test_the_page_is_named_where_there_is_one(args, there):
    assert has_page({"applications": [{"args": args}]}) == there


def test_no_page_is_named_where_it_is_not_installed(without_plugins):
    assert not has_page({"applications": [{}]})
