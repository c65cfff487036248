import itertools
import json
import sys

import pytest

from ensemble_capacity.load import __main__ as load
from ensemble_capacity.load import search
from packages.capacity.tests.load.test_protocols import ANSWERS, described
from tests.local_servers import HttpServer, Reply

NOBODY = "http://127.0.0.1:9"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ensemble load", *map(str, arguments)])
    load.main()


@pytest.fixture
def files(tmp_path):
    """Files to name on the command line."""
    (tmp_path / "unsorted").write_text("0\n2.5\n1.5\n")
    (tmp_path / "words").write_text("0\nsoon\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


BAD = {
    ("127.0.0.1:8000",): "URL: this is no URL of a server",
    (NOBODY,): "URL: no connection to 127.0.0.1:9",
    (f"{NOBODY}/v2",): "URL: no server with a model 'ensemble'",
    ("grpc://127.0.0.1:9",): "URL: no server with a model 'ensemble'",
    (NOBODY, "--rate", "0"): "Invalid value for '--rate': ",
    (NOBODY, "--rate", "nan"): "Invalid value for '--rate': ",
    (NOBODY, "--concurrency", "0"): "Invalid value for '--concurrency': ",
    (NOBODY, "--concurrency", "many"): "Invalid value for '--concurrency': ",
    (NOBODY, "--rate", "fast"): "Invalid value for '--rate': ",
    (NOBODY, "--warm-up", "-1"): "Invalid value for '--warm-up': ",
    (NOBODY, "--concurrency", "100000"): "Invalid value for '--concurrency': 100000 is not in the range",
    (NOBODY, "--batch", "65"): "Invalid value for '--batch': 65 is not in the range 1<=x<=64",
    (NOBODY, "--rate", "9", "--concurrency", "1"): "--concurrency, --rate: name one of them",
    (NOBODY, "--slo-ms", "50", "--rate", "9"): "--slo-ms: searches the rate by itself",
    (NOBODY, "--percentile", "90"): "--percentile: is for --slo-ms",
    (NOBODY, "--percentile", "100"): "Invalid value for '--percentile': ",
    (NOBODY, "--images", "{}/folder"): "--images: there is no image in {}/folder",
    (NOBODY, "--images", "{}/nowhere.jpg"): "--images: ",
    (NOBODY, "--data", "{}/folder"): "--data: {}/folder holds no <class>/*.jpg",
    (NOBODY, "--images", "{}/words", "--repeats", "0.5"): "--repeats: every image must be a JPEG",
    (NOBODY, "--markdown", "{}/nowhere/p"): "Invalid value for '--markdown': there is no folder {}/nowhere to write",
    (NOBODY, "--json", "{}/folder"): "Invalid value for '--json': File '{}/folder' is a directory",
    (NOBODY, "--shape", "image:3,224,224"): "--shape: /classify takes images as they are",
    (NOBODY, "--ca", "{}/empty"): "--ca: http:// has no certificate",
    (NOBODY, "--shape", "x"): "Invalid value for '--shape': must be like image:3,224,224",
    ("grpc://127.0.0.1:9", "--protocol", "classify"): "--protocol: /classify is HTTP",
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line_that_names_the_flag(arguments, files, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *(each.replace("{}", str(files)) for each in arguments))
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ensemble load: {BAD[arguments].replace('{}', str(files))}"), line


def test_a_wrong_model_and_a_request_that_is_refused_name_the_flag(monkeypatch, capsys):
    with described(ANSWERS) as server, pytest.raises(SystemExit) as end:
        run(monkeypatch, f"{server.url}/v2", "--model", "nothing")
    assert end.value.code == 2
    assert "ensemble load: --model: " in capsys.readouterr().err
    with HttpServer(lambda asked: Reply(400, b"no image")) as server, pytest.raises(SystemExit) as end:
        run(monkeypatch, server.url)
    assert end.value.code == 2
    assert "refuses the first request with 400: no image" in capsys.readouterr().err


def test_loads_are_measured_and_reported(monkeypatch, tmp_path, capsys):
    paths = {kind: tmp_path / f"load.{kind}" for kind in ("json", "markdown")}
    flags = [text for kind, path in paths.items() for text in (f"--{kind}", path)]
    with HttpServer(lambda asked: Reply(delay_s=0.005)) as server:
        run(monkeypatch, server.url, "--concurrency", 1, 3, "--seconds", 0.5, "--warm-up", 0.1, "--timeout", 10, *flags)
    told = json.loads(paths["json"].read_text())
    assert [row["value"] for row in told["rows"]] == [1, 3]
    assert told["protocol"] == "classify"
    assert len(paths["markdown"].read_text().splitlines()) == 4
    assert "3 at a time" in capsys.readouterr().out


def test_a_search_ends_with_what_it_found(monkeypatch, tmp_path, capsys):
    # Two rates are soon measured, and no machine is so busy that they miss the objective.
    monkeypatch.setattr(search, "TRIES", 2)
    with HttpServer(lambda asked: Reply(delay_s=0.002)) as server:
        flags = ["--slo-ms", 60_000, "--percentile", 50, "--seconds", 0.4, "--warm-up", 0]
        run(monkeypatch, server.url, *flags, "--json", tmp_path / "found.json")
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["found"] == len(told["rows"]) - 1
    assert told["rows"][told["found"]]["slo_percentile_ms"] <= 60_000
    assert "is the highest rate found at which p50 is at most 60000 ms" in capsys.readouterr().out


def test_the_exit_status_is_1_if_every_request_failed(monkeypatch, capsys):
    # The first one, which asks whether there is a server, is answered.
    replies = itertools.chain([Reply()], itertools.repeat(Reply(500, b"no")))
    with HttpServer(lambda asked: next(replies)) as server, pytest.raises(SystemExit) as end:
        run(monkeypatch, server.url, "--seconds", 0.2, "--warm-up", 0)
    assert end.value.code == 1
    assert "500" in capsys.readouterr().out
