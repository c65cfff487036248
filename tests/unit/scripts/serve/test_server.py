import signal
import subprocess
import sys

import pytest

from scripts.serve.server import has_page
from tests.conftest import ROOT
from tests.local_servers import HttpServer, Reply

# In a process of its own, which the signal would end otherwise.
CLOSED = """
import os, signal, sys
from scripts.serve.server import stop_signals
at_the_start = signal.Handlers(int(sys.argv[1]))
signal.signal(signal.SIGHUP, at_the_start)
with stop_signals() as stop:
    os.kill(os.getpid(), signal.SIGHUP)
    print(stop.wait(0))
assert signal.getsignal(signal.SIGHUP) == at_the_start
"""


@pytest.mark.parametrize(("at_the_start", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_stops_what_nohup_has_not_started(at_the_start, stops):
    command = [sys.executable, "-c", CLOSED, str(int(at_the_start))]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout == f"{stops}\n"


@pytest.mark.parametrize(("status", "there"), [(200, True), (404, False)])
def test_the_page_is_named_where_there_is_one(status, there):
    with HttpServer(lambda asked: Reply(status)) as server:
        assert has_page(server.url) == there


def test_no_page_is_named_where_nobody_answers():
    assert not has_page("http://127.0.0.1:1")
