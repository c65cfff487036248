import os
import socket

import pytest

from scripts.errors import ScriptError
from scripts.serve import block
from scripts.serve.block import FIRST_SETTING, LAST_SETTING, block_of_ports


@pytest.fixture
def small(monkeypatch):
    """Two blocks of ten ports, behind those of servers and below what a system gives to whoever asks for any port."""
    monkeypatch.delenv(FIRST_SETTING, raising=False)
    monkeypatch.delenv(LAST_SETTING, raising=False)
    monkeypatch.setattr(block, "FIRST", 32_010)
    monkeypatch.setattr(block, "END", 32_030)
    monkeypatch.setattr(block, "SIZE", 10)


def forget(monkeypatch):
    """Another process has another environment."""
    for name in (FIRST_SETTING, LAST_SETTING):
        monkeypatch.delenv(name)


def test_servers_at_the_same_time_have_blocks_of_their_own(small, monkeypatch):
    with block_of_ports():
        assert (os.environ[FIRST_SETTING], os.environ[LAST_SETTING]) == ("32010", "32019")
        forget(monkeypatch)
        with block_of_ports():
            assert os.environ[FIRST_SETTING] == "32020"
            forget(monkeypatch)
            with pytest.raises(ScriptError, match=FIRST_SETTING), block_of_ports():
                pass
    with block_of_ports():
        assert os.environ[FIRST_SETTING] == "32010"


def test_what_listens_within_a_block_is_left_alone(small):
    with socket.create_server(("127.0.0.1", 32_013)), block_of_ports():
        assert os.environ[FIRST_SETTING] == "32020"
    assert FIRST_SETTING not in os.environ


def test_whose_environment_names_the_ports_has_those(small, monkeypatch):
    monkeypatch.setenv(FIRST_SETTING, "45000")
    with block_of_ports():
        assert os.environ[FIRST_SETTING] == "45000"
        assert LAST_SETTING not in os.environ
