import json
import logging
import os
import time

import pytest
from ray._common.formatters import JSONFormatter
from ray.serve._private.common import ServeComponentType
from ray.serve._private.logging_utils import ServeComponentFilter, ServeFormatter

from scripts.serve.logs import MOST_AT_ONCE, REPEAT_S, Logs


class Replica:
    """Logs as a replica does: by Serve's own formatters, into the file that Serve would take."""

    def __init__(self, session, as_json, replica="abc"):
        folder = session / "logs" / "serve"
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"replica_ensemble_Ingress_{replica}.log"
        handler = logging.FileHandler(self.file)
        handler.setFormatter(JSONFormatter() if as_json else ServeFormatter("ensemble_Ingress", replica))
        if as_json:
            handler.addFilter(ServeComponentFilter("ensemble_Ingress", replica, ServeComponentType.REPLICA))
        self.log = logging.Logger(replica)
        self.log.addHandler(handler)


@pytest.fixture(params=[False, True])
def as_json(request):
    return request.param


def fail(log):
    try:
        raise ValueError("first\nline") from KeyError("cause")
    except ValueError:
        log.exception("failed on a batch of %d", 3, extra={"trace_ids": ["ab"]})


def test_warnings_and_errors_are_found_once_with_who_logged_them(tmp_path, as_json, capfd):
    logs, replica = Logs(tmp_path, as_json), Replica(tmp_path, as_json)
    replica.log.info("ERROR of no interest")
    replica.log.warning("member %r is left out", "six")
    fail(replica.log)
    replica.log.info("more")
    found = [(*record[:4], record.cause) for record in logs.new()]
    assert found == [
        ("WARNING", "ensemble_Ingress", "abc", "member 'six' is left out", ""),
        ("ERROR", "ensemble_Ingress", "abc", "failed on a batch of 3", "ValueError: first"),
    ]
    assert logs.new() == []
    replica.log.error("another")
    logs.print_new()
    printed = capfd.readouterr().err
    if as_json:
        assert json.loads(printed)["replica"] == "abc"
    else:
        assert printed == "error: ensemble_Ingress abc: another\n"


def test_a_colon_before_the_exception_is_there_once(tmp_path, capfd):
    logs, replica = Logs(tmp_path), Replica(tmp_path, as_json=False)
    try:
        raise ValueError("why")
    except ValueError:
        replica.log.exception("it failed with exception:")
    logs.print_new()
    assert capfd.readouterr().err == "error: ensemble_Ingress abc: it failed with exception: ValueError: why\n"


def test_json_has_the_trace_ids(tmp_path):
    logs, replica = Logs(tmp_path, as_json=True), Replica(tmp_path, as_json=True)
    fail(replica.log)
    [record] = logs.new()
    assert json.loads(record.line)["trace_ids"] == ["ab"]


def test_a_log_of_text_is_printed_as_json_too(tmp_path, capfd):
    logs, replica = Logs(tmp_path, as_json=True), Replica(tmp_path, as_json=False)
    replica.log.warning("text")
    logs.print_new()
    printed = json.loads(capfd.readouterr().err)
    assert (printed["levelname"], printed["message"], printed["component_id"]) == ("WARNING", "text", "abc")


def test_what_repeats_is_found_once_a_minute(tmp_path, as_json, monkeypatch):
    logs, replicas = Logs(tmp_path), [Replica(tmp_path, as_json, name) for name in ("abc", "def")]
    for each in replicas:
        each.log.warning("again")
    [record] = logs.new()
    assert record.replica == "abc"
    for number in range(2):
        replicas[0].log.error("an image failed; trace %s", f"{number:032x}")
    assert len(logs.new()) == 1
    replicas[1].log.warning("again")
    assert logs.new() == []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + REPEAT_S + 1)
    replicas[1].log.warning("again")
    assert [record.replica for record in logs.new()] == ["def"]


def test_what_was_passed_over_is_found_when_it_is_logged_again(tmp_path, as_json):
    logs, replica = Logs(tmp_path), Replica(tmp_path, as_json)
    replica.log.warning("refused")
    logs.skip()
    assert logs.new() == []
    replica.log.warning("refused")
    assert [record.message for record in logs.new()] == ["refused"]


def test_a_line_that_is_being_written_is_read_later_and_a_rotated_file_anew(tmp_path):
    logs, replica = Logs(tmp_path), Replica(tmp_path, as_json=False)
    replica.log.warning("whole")
    line = replica.file.read_bytes()
    replica.file.write_bytes(line[:-9])
    assert logs.new() == []
    replica.file.write_bytes(line)
    assert [record.message for record in logs.new()] == ["whole"]
    os.truncate(replica.file, 0)
    replica.file.write_bytes(line.replace(b"whole", b"new"))
    assert [record.message for record in logs.new()] == ["new"]


def test_a_flood_is_counted(tmp_path, capfd):
    logs, replica = Logs(tmp_path), Replica(tmp_path, as_json=False)
    for number in range(MOST_AT_ONCE + 5):
        replica.log.warning("number %d", number)
    logs.print_new()
    *lines, last = capfd.readouterr().err.splitlines()
    assert len(lines) == MOST_AT_ONCE
    assert last == f"warning: 5 more warnings and errors are in {logs.folder}"
