"""Every reported figure is measured or has a reason; pages and pictures are those of the stored results."""

import json
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from lab import reported
from lab.experiments import __main__ as command
from lab.experiments import experiment
from lab.experiments.experiment import BEGIN, END, Experiment, Here, Part
from lab.pictures.chart import Bar
from scripts.errors import ScriptError
from scripts.results import Table

KNOWN = {*command.EXPERIMENTS, *command.WITH_OPTIONS}
STORED = [each for each in command.DRAWN if each.stored() is not None]


def test_every_reported_figure_is_measured_or_has_a_reason():
    assert [each for each in reported.REPORTED if (each.experiment is None) == (each.why_not is None)] == []
    named = {each.experiment for each in reported.REPORTED} - {None}
    assert named <= KNOWN


def test_a_figure_is_found_by_its_name():
    twice = Counter((each.experiment, each.what) for each in reported.REPORTED)
    assert [key for key, count in twice.items() if count > 1] == []


def test_the_reported_traffic_is_that_of_float_images():
    [traffic] = [each for each in reported.of("payloads") if each.unit == "Gb/s"]
    assert traffic.value == pytest.approx(1000 * 224 * 224 * 3 * 4 * 8 / 1e9, abs=0.05)


@pytest.mark.parametrize("one", STORED, ids=lambda one: one.name)
def test_the_page_and_the_picture_show_what_is_stored(one):
    page, svg = one.drawn()
    assert (experiment.FOLDER / f"{one.name}.md").read_text() == page, "run `ensemble experiments pages`"
    assert (experiment.IMAGES / f"{one.name}.svg").read_text() == svg, "run `ensemble experiments pages`"


@pytest.mark.parametrize("one", STORED, ids=lambda one: one.name)
def test_what_was_measured_answers_reported_figures(one):
    figures = set(one.compare(one.stored().rows))
    assert figures or not reported.of(one.name)
    assert figures <= {each.what for each in reported.of(one.name)}


def test_the_index_has_every_experiment():
    index = (experiment.FOLDER / "index.md").read_text()
    assert [name for name in KNOWN if f"]({name}.md)" not in index] == []


@pytest.fixture
def counted(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(experiment, "IMAGES", tmp_path)
    (tmp_path / "arrivals.md").write_text(f"# Mine\n{BEGIN}old\n{END}learned\n")
    seen = []

    def measured(seconds):
        seen.append(seconds)
        yield {"rate": 7}

    def measure(seconds):
        return [Part("all", partial(measured, seconds))]

    what = reported.of("arrivals")[0].what
    one = Experiment(
        "arrivals",
        "Rate",
        "Images",
        lambda: None,
        measure,
        lambda rows: Table(("rate",), [[str(rows[0]["rate"])]]),
        lambda rows: {what: Here(7, "seven", "all")},
        lambda rows: [("", [Bar("here", 7, "7")])],
        seconds=3,
    )
    return one, seen, tmp_path


def test_a_run_writes_its_files_and_is_not_repeated(counted):
    one, seen, folder = counted
    assert one.run(None, again=False)
    assert not one.run(None, again=False)
    assert one.run(2, again=True)
    assert seen == [3, 2]
    assert json.loads((folder / "arrivals.json").read_text())["rows"] == [{"rate": 7}]
    page = (folder / "arrivals.md").read_text()
    assert page.startswith("# Mine\n")
    assert page.endswith("learned\n")
    assert "| gRPC | seven | all |" in page
    assert "old" not in page


def test_a_result_of_another_commit_is_made_anew(counted):
    one, seen, folder = counted
    one.run(None, again=False)
    stored = json.loads((folder / "arrivals.json").read_text())
    (folder / "arrivals.json").write_text(json.dumps({**stored, "commit": "other"}))
    assert one.run(None, again=False)
    assert len(seen) == 2


def test_pages_pass_over_what_has_no_result(counted, capsys):
    one, _, folder = counted
    one.run(None, again=False)
    (folder / "arrivals.md").write_text(f"{BEGIN}{END}")
    command.draw([replace(one, name="missing"), one])
    assert "not measured yet, so nothing was drawn: missing" in capsys.readouterr().out
    assert "seven" in (folder / "arrivals.md").read_text()


def test_an_interrupted_run_resumes_with_the_part_after(counted):
    def parts(seconds):
        return [Part(name, partial(measured, name)) for name in ("first", "second")]

    def measured(name):
        asked.append(name)
        if asked == ["first", "second"]:
            raise KeyboardInterrupt
        return [{"rate": name}]

    asked, (one, _, folder) = [], counted
    one = replace(one, measure=parts)
    with pytest.raises(KeyboardInterrupt):
        one.run(None, again=True)
    assert one.stored() is None
    one.run(None, again=True)
    assert asked == ["first", "second", "second"]
    assert one.stored().rows == [{"rate": "first"}, {"rate": "second"}]
    assert list(folder.glob("*.partial.json")) == []
    asked.clear()
    with pytest.raises(KeyboardInterrupt):
        one.run(None, again=True)
    # With other loads the first part is not what is wanted.
    one.run(5, again=True)
    assert asked == ["first", "second", "first", "second"]


def test_what_was_measured_before_an_error_stays_and_the_error_has_a_row():
    def measured():
        yield {"clients": 1}
        raise ScriptError(f"the server did not start: {'x' * 999}\n  port\ttaken")

    first, last = Part("a", measured, {"system": "peer"}).rows()
    assert first == {"system": "peer", "clients": 1}
    assert last["error"].endswith("x port taken")
    assert len(last["error"]) == experiment.LAST
    with pytest.raises(ScriptError):
        Part("a", measured).rows()


def test_a_page_without_a_place_for_the_tables_is_told(counted):
    one, _, folder = counted
    (folder / "arrivals.md").write_text("# Mine\n")
    with pytest.raises(ScriptError, match="no place for its tables"):
        one.run(None, again=False)


def test_all_that_is_missing_is_told_before_anything_starts(counted):
    def lacks():
        raise ScriptError("no such extra")

    one, seen, _ = counted
    with pytest.raises(ScriptError, match="arrivals: no such extra; b: no such extra"):
        command.check([replace(one, check=lacks), replace(one, name="b", check=lacks), one])
    assert seen == []


def test_an_unknown_name_lists_the_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", "none"])
    with pytest.raises(SystemExit):
        command.main()
    printed = capsys.readouterr().err
    assert [name for name in KNOWN if name not in printed] == []
