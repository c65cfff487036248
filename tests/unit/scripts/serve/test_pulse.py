import contextlib
import signal
import subprocess
import sys

import pytest

from scripts.serve.pulse import Pulse

ANSWERS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("open", flush=True)
    while True:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.send(b"x")
        connection.close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "socket"


@contextlib.contextmanager
def listening(path):
    with subprocess.Popen([sys.executable, "-c", ANSWERS, path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"open\n"
            yield process
        finally:
            process.kill()


def test_a_process_that_is_frozen_stands_still_and_one_that_answers_or_has_ended_does_not(path):
    pulse = Pulse(path, b"?")
    assert pulse.find_still() is None
    with listening(path) as process:
        for _ in range(5):
            assert pulse.find_still() is None
        process.send_signal(signal.SIGSTOP)
        found = [pulse.find_still() for _ in range(3)]
        # What it did before it was frozen counts once.
        assert found[-1] == process.pid
        process.send_signal(signal.SIGCONT)
        assert [pulse.find_still() for _ in range(3)] == [None] * 3
    assert pulse.find_still() is None


def test_a_process_that_is_busy_does_not_stand_still(path):
    busy = ANSWERS.replace("connection, _ = listener.accept()", "continue")
    with subprocess.Popen([sys.executable, "-c", busy, path], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        pulse = Pulse(path, b"?")
        assert [pulse.find_still() for _ in range(3)] == [None] * 3
        process.kill()
