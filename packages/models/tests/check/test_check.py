from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml

from deployments.repository.errors import ModelError
from ensemble_models.check import __main__ as command
from ensemble_models.check.measure import confusions, served
from ensemble_models.check.measure import repository as evaluate
from ensemble_models.check.report import Score
from ensemble_models.check.served import Answers, running
from ensemble_models.dataset import Dataset
from graph.config import EnsembleConfig, parse
from graph.signature import resolve_signatures
from packages.models.tests.tiny import Draw, add, constant
from scripts.configuration import IMPORT_PATH
from scripts.errors import ScriptError

COUNTS = {"bird": 2, "cat": 5, "dog": 3}
BIRDS, DOGS = [0.6, 0.4, 0.0], [0.0, 0.4, 0.6]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two members that are right for 20 % and 30 % of the images; only one of them has an int8 version."""
    root = tmp_path / "repository"
    add(root, "a", constant(BIRDS), "FP16")
    add(root, "b", constant(DOGS), "FP16")
    add(root, "b", constant([0, 1, 0]), "INT8")
    return root


def config(repository: Path, **more: object) -> EnsembleConfig:
    return parse({"model_repository": str(repository), "members": [{"name": "a"}, {"name": "b"}], **more})


def test_members_and_ensemble_are_measured_exactly(repository: Path, draw: Draw) -> None:
    scores, sentences, _ = evaluate(repository, [], Dataset.open(draw(COUNTS)))
    # In float16 0.6 is 0.6001.
    assert scores == [
        Score("a", "FP16", 20.0, 10, 1, 40.01),
        Score("b", "FP16", 30.0, 10, 1, 30.01),
        Score("b", "INT8", 50.0, 10, 2, 50.0),
        # 0.3, 0.4, 0.3: the members' second choice.
        Score("ensemble", "FP16", 50.0, 10, None, 10.01),
    ]
    assert sentences[:1] == [
        # Right of five cats that b is wrong of, wrong of three dogs that it is right of.
        "FP16 ensemble: +20.00 points of top-1 against its best member, b (paired 95 % interval -34.03 to +74.03); "
        "it makes 28.6% fewer errors than that member"
    ]
    assert scores[0].cells == ("a", "1", "FP16", "20.00", "5.67 to 50.98", "40.01", "10")


def test_the_command_judges_by_what_training_left_out(
    repository: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["check", "--repository", str(repository), "--data", str(draw(COUNTS)), "--hold-out", "4"]
    monkeypatch.setattr(sys, "argv", [*line, "--members", "a", "b"])
    command.main()
    assert " 4 │" in capsys.readouterr().out


def test_a_configuration_is_measured_as_it_is_served(repository: Path, draw: Draw) -> None:
    """The highest versions with the configuration's weights, and not every model of the repository."""
    add(repository, "student", constant(BIRDS), "FP16")
    content = config(repository, combiner={"weights": {"a": 1, "b": 0}}, transformer={"crop_ratio": 0.5})
    scores, sentences, _ = served(content, resolve_signatures(content), Dataset.open(draw(COUNTS)))
    assert scores == [
        Score("a", "FP16", 20.0, 10, 1, 40.01),
        Score("b", "FP16", 30.0, 10, 1, 30.01),
        Score("b", "INT8", 50.0, 10, 2, 50.0),
        # `b` has no say.
        Score("ensemble", "FP16+INT8", 20.0, 10, None, 40.01),
        Score("ensemble", "FP16", 20.0, 10, None, 40.01),
    ]
    text = "\n".join(sentences)
    size = "8 x 8 pixels (the centre crop of 0.5 of the shorter side; its model was prepared for 1)"
    assert sentences[0] == f"a gets {size}."
    assert "The images have 8 x 8 pixels (medians)." in text
    assert "The configuration serves the FP16+INT8 ensemble: a 1, b 2." in text
    assert "cat is taken for bird: 5 of 5 images, 100.0% (95 % interval 56.6 to 100.0)." in text
    assert "The members disagree on 100.0% of the images, of which the ensemble has 20.0% right:" in text
    assert "bird/0.png (a: bird 0.60, b: cat 1.00)" in text


def test_one_image_of_a_class_shows_no_confusion() -> None:
    """Five lines said "1 of 1 images"."""
    labels = np.arange(500)
    answers = np.where(labels < 5, 400, labels)
    assert not list(confusions(answers, labels, [str(each) for each in labels]))


def test_a_cascade_is_measured_as_it_is_served(repository: Path, draw: Draw) -> None:
    content = config(repository, ensemble={"cascade": {"order": ["a", "b"], "exit_at": [0.5]}})
    scores, sentences, _ = served(content, resolve_signatures(content), Dataset.open(draw(COUNTS)))
    # The first one is sure enough of its bird.
    assert scores[3] == Score("ensemble", "FP16+INT8", 20.0, 10, None, 40.01)
    # Each ensemble has a sentence of its own.
    told = [sentence for sentence in sentences if "the cascade" in sentence]
    assert told == [
        f"{kind} ensemble: the cascade answers 100.0% of the images by a alone." for kind in ("FP16+INT8", "FP16")
    ]


def test_an_int8_ensemble_needs_every_member(repository: Path, draw: Draw) -> None:
    add(repository, "a", constant([0.1, 0, 0.9]), "INT8")
    scores, _, _ = evaluate(repository, [], Dataset.open(draw(COUNTS)))
    assert scores[-1] == Score("ensemble", "INT8", 50.0, 10, None, 0.0)


def test_a_vote_is_not_a_mean(repository: Path, draw: Draw) -> None:
    add(repository, "c", constant(DOGS), "FP16")
    scores, _, _ = evaluate(repository, [], Dataset.open(draw(COUNTS)), "majority_vote")
    assert scores[-1].top1 == 30.0


def test_other_classes_are_an_error(repository: Path, draw: Draw) -> None:
    with pytest.raises(ScriptError, match="the class 'horse'"):
        evaluate(repository, [], Dataset.open(draw({"cat": 1, "horse": 1})))
    add(repository, "d", constant([1, 0]), "FP16", labels=["bird", "cat"])
    with pytest.raises(ScriptError, match="different labels"):
        evaluate(repository, [], Dataset.open(draw(COUNTS)))
    with pytest.raises(ModelError, match="no model 'e'"):
        evaluate(repository, ["e"], Dataset.open(draw(COUNTS)))


def test_a_model_without_labels_is_an_error(tmp_path: Path, draw: Draw) -> None:
    add(tmp_path / "repository", "m", constant(BIRDS), "FP16", labels=None)
    with pytest.raises(ScriptError, match="has no labels"):
        evaluate(tmp_path / "repository", [], Dataset.open(draw(COUNTS)))


def test_a_name_of_two_classes_is_an_error(tmp_path: Path, draw: Draw) -> None:
    add(tmp_path / "repository", "m", constant(BIRDS), "FP16", labels=["crane", "cat", "crane"])
    evaluate(tmp_path / "repository", [], Dataset.open(draw({"cat": 1})))
    # The model's classes of one name have their indices.
    with pytest.raises(
        ScriptError, match=r"has the class 'crane', which is none of .* \(crane \(0\), cat, crane \(2\)"
    ):
        evaluate(tmp_path / "repository", [], Dataset.open(draw({"cat": 1, "crane": 1})))


def test_two_classes_of_one_folder_are_an_error(tmp_path: Path, draw: Draw) -> None:
    add(tmp_path / "repository", "m", constant(BIRDS), "FP16", labels=["cat/kätzchen", "cat_kätzchen"])
    message = r"'cat/kätzchen' and 'cat_kätzchen' have one folder, 'cat_kätzchen'"
    with pytest.raises(ScriptError, match=message):
        evaluate(tmp_path / "repository", [], Dataset.open(draw({"cat_kätzchen": 1})))
    counted, votes = Answers(), [{"label": label, "probability": 1.0} for label in ("cat/kätzchen", "cat_kätzchen")]
    counted.count({**votes[0], "members": {}, "model_versions": {}}, "cat_kätzchen")
    with pytest.raises(ScriptError, match=message):
        counted.count({**votes[1], "members": {}, "model_versions": {}}, "cat_kätzchen")


def test_a_damaged_image_is_named(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(ScriptError, match=r"cat/bad\.jpg"):
        evaluate(repository, [], Dataset.open(tmp_path / "images"))


class Server(BaseHTTPRequestHandler):
    """Answers `cat` for the ensemble and `dog` for a member, but is full at every third request."""

    requests = 0
    label = "cat"
    full_every = 3
    page = False
    cascade = False
    load_shed = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).requests += 1
        if self.page:
            self._answer(200, None)
        elif self.path != "/classify?members=true":
            self._answer(400, {"error": {"code": "invalid_parameter", "message": self.path}})
        elif self.requests % self.full_every == 0:
            self._answer(503, {"error": {"code": "overloaded", "message": "full", "retry_after_ms": 1}})
        else:
            votes = {
                "a": {"label": self.label, "index": 1, "probability": 0.5},
                "b": {"label": "dog", "index": 2, "probability": 0.5},
            }
            if self.cascade and self.requests % 2:
                del votes["b"]
            versions = {name: version for name, version in {"a": 1, "b": 2}.items() if name in votes}
            answer = {"label": self.label, "index": 1, "probability": 0.5, "top": [], "trace_id": "0" * 32}
            answer |= {"load_shed": True} if self.load_shed else {}
            self._answer(200, {**answer, "members": votes, "model_versions": versions})

    def _answer(self, status: int, body: object) -> None:
        self.send_response(status)
        content = json.dumps(body).encode() if body else b"<html>welcome</html>"
        self.send_header("Content-Length", str(len(content)))
        if status == 503:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Server]]]:
    handler = type("Handler", (Server,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", handler
        http.shutdown()
        thread.join()


def test_an_answer_that_the_load_shortened_is_not_the_ensembles(
    server: tuple[str, type[Server]], repository: Path, draw: Draw
) -> None:
    url, handler = server
    handler.load_shed = True
    with pytest.raises(ScriptError, match="lower --connections"):
        running(url, config(repository), Dataset.open(draw(COUNTS)), 4)


def test_a_server_is_measured_and_asked_again_when_full(
    server: tuple[str, type[Server]], repository: Path, draw: Draw
) -> None:
    url, handler = server
    scores, sentences = running(url, config(repository), Dataset.open(draw(COUNTS)), 4)
    assert scores == [
        Score("a", "FP16", 50.0, 10, 1, 0.0),
        Score("b", "INT8", 30.0, 10, 2, 20.0),
        Score("ensemble", "FP16+INT8", 50.0, 10, None, 0.0),
    ]
    assert handler.requests == 14
    assert "+0.00 points" in sentences[0]


def test_a_server_is_measured_where_its_models_are_not(
    server: tuple[str, type[Server]], tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"model_repository": "nowhere", "members": [{"name": "a"}, {"name": "b"}]}
    application = {"import_path": IMPORT_PATH, "args": arguments}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump({"applications": [application]}))
    flags = ["--data", draw(COUNTS), "--url", server[0], "--connections", 4, "--json", tmp_path / "t.json"]
    run(monkeypatch, tmp_path / "my.yaml", *flags)
    assert [each["precision"] for each in json.loads((tmp_path / "t.json").read_text())][:2] == ["unknown", "unknown"]


def test_of_a_cascade_only_the_members_that_saw_every_image_are_measured(
    server: tuple[str, type[Server]], repository: Path, draw: Draw
) -> None:
    url, handler = server
    handler.cascade, handler.full_every = True, 100
    scores, sentences = running(url, config(repository), Dataset.open(draw(COUNTS)), 1)
    assert [score.name for score in scores] == ["a", "ensemble"]
    assert sentences == ["The cascade asked b about 50.0 % of the images."]


def test_a_server_that_is_no_ensemble_is_told(server: tuple[str, type[Server]], repository: Path, draw: Draw) -> None:
    url, handler = server
    handler.label = "horse"
    dataset = Dataset.open(draw({"cat": 2}))
    with pytest.raises(ScriptError, match="no answer is a class of"):
        running(url, config(repository), dataset, 1)
    with pytest.raises(ScriptError, match="refused an image: /nowhere/classify"):
        running(url + "/nowhere", config(repository), dataset, 1)
    with pytest.raises(ScriptError, match="is the server running"):
        running("http://127.0.0.1:9", config(repository), dataset, 2)
    with pytest.raises(ScriptError, match="--url http://127"):
        running("http://127.0.0.1:port", config(repository), dataset, 2)
    handler.page = True
    with pytest.raises(ScriptError, match="is this the ensemble"):
        running(url, config(repository), dataset, 1)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["evaluate", *map(str, arguments)])
    command.main()


def test_the_table_is_written_as_markdown_and_json(
    repository: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data", draw(COUNTS), "--repository", repository]
    run(monkeypatch, *flags, "--markdown", tmp_path / "t.md", "--json", tmp_path / "t.json")
    assert "| ensemble |  | FP16 | 50.00 | 23.66 to 76.34 | 10.01 | 10 |" in (tmp_path / "t.md").read_text()
    scores = json.loads((tmp_path / "t.json").read_text())
    assert scores[0] == {"name": "a", "precision": "FP16", "top1": 20.0, "images": 10, "version": 1, "ece": 40.01}
    assert "20.00" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_written(
    repository: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    run(monkeypatch, "--data", draw(COUNTS), "--repository", repository, "--plot", tmp_path / f"t.{suffix}")
    start = (tmp_path / f"t.{suffix}").read_bytes()[:5]
    assert start == (b"<?xml" if suffix == "svg" else b"\x89PNG\r")
    assert b"<dc:date>" not in (tmp_path / f"t.{suffix}").read_bytes()


def test_mistakes_end_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"error: .*missing\.zip is neither a folder nor a zip"):
        run(monkeypatch, "--data", tmp_path / "missing.zip")
    for flags, message in (
        (["--url", "http://127.0.0.1:9", "--method", "mean"], "are the server's"),
        (["--connections", 4], "--connections is for --url"),
        (["--json", tmp_path / "missing" / "t.json"], "no folder"),
        (["my.yaml", "--members", "a"], "CONFIG names members and repository"),
        (["my.yaml", "--repository", tmp_path], "CONFIG names members and repository"),
    ):
        with pytest.raises(SystemExit):
            run(monkeypatch, "--data", tmp_path, *flags)
        assert message in capsys.readouterr().err
    monkeypatch.delenv("ENSEMBLE_DATA", raising=False)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch)
    assert caught.value.code == 2


def separate(repository: Path, file: Path) -> Path:
    """Write a configuration of two members with processes of their own."""
    args = {
        "model_repository": str(repository),
        "ensemble": {"quorum": 2, "cascade": {"order": ["a", "b"], "exit_at": [0.9]}},
        "members": [{"name": "a", "deployment": "One"}, {"name": "b", "deployment": "Two"}],
    }
    deployments = [{"name": "Ingress"}, {"name": "One"}, {"name": "Two"}]
    content = {"applications": [{"name": "e", "import_path": IMPORT_PATH, "args": args, "deployments": deployments}]}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def test_the_advised_members_are_written_as_a_configuration(
    repository: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`b` answers cat, and `a` beside it changes no answer: `b` is served by itself."""
    add(repository, "b", constant([0.2, 0.6, 0.2]), "FP32")
    mine, better = separate(repository, tmp_path / "mine.yaml"), tmp_path / "better.yaml"
    line = ["check", str(mine), "--data", str(draw(COUNTS)), "--write", str(better), "--json", str(tmp_path / "c.json")]
    monkeypatch.setattr(sys, "argv", line)
    command.main()
    out = capsys.readouterr().out
    assert f"wrote {better}, which serves b" in out
    assert "Serve b by itself: these images show no ensemble that is better." in out
    written = yaml.safe_load(better.read_text())["applications"][0]
    assert [each["name"] for each in written["args"]["members"]] == ["b"]
    assert written["args"]["ensemble"] == {"quorum": 1}
    assert written["args"]["combiner"] == {"method": "mean", "weights": {"b": 1.0}}
    assert [each["name"] for each in written["deployments"]] == ["Ingress", "Two"]
    parse(written["args"])
    rows = [each for each in json.loads((tmp_path / "c.json").read_text()) if "members" in each]
    assert [each["members"] for each in rows if each["is_chosen"]] == [["b"]]
    assert all(each["cpu_ms"] > 0 and each["weights_mb"] >= 0 for each in rows)
    with pytest.raises(SystemExit, match="is there already"):
        command.main()


def test_a_configuration_without_a_quorum_gets_none(repository: Path, draw: Draw, tmp_path: Path) -> None:
    """Every member had to answer; the written file said that one was enough."""
    content = config(repository)
    found = served(content, resolve_signatures(content), Dataset.open(draw(COUNTS)))
    args = {"model_repository": str(repository), "members": [{"name": "a"}, {"name": "b"}]}
    assert found.choice is not None
    found.choice.write({"applications": [{"import_path": IMPORT_PATH, "args": args}]}, tmp_path / "better.yaml")
    assert yaml.safe_load((tmp_path / "better.yaml").read_text())["applications"][0]["args"]["ensemble"] == {}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--members", "a", "b", "--write", "x.yaml"], "--write writes CONFIG's members"),
        (["--url", "http://127.0.0.1:1", "--max-cost", "3"], "are for members that run here"),
        (["--members", "a", "--min-top1", "50"], "there is no choice: it needs two members"),
        (["--members", "a", "b", "--max-cost", "0.000001"], "no subset keeps --max-cost and --min-top1"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    more: list[str],
    reason: str,
    repository: Path,
    draw: Draw,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["check", "--data", str(draw(COUNTS)), "--repository", str(repository), *more])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert reason in capsys.readouterr().err + str(ended.value)


def test_images_that_made_a_model_are_named(repository: Path, draw: Draw) -> None:
    data = Dataset.open(draw(COUNTS))
    for file in repository.glob("a/*/metadata.json"):
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"calibration": {"sha256": data.sha256}}))
    _, sentences, _ = evaluate(repository, [], data)
    assert [each for each in sentences if "calibrated" in each] == [
        "a 1 was calibrated on these images, so its figures are too high; take other images."
    ]
