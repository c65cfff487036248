"""Every reported figure is measured or has a reason; pages and pictures are those of the stored results."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest

from lab import reported, rows
from lab.experiments import __main__ as command
from lab.experiments import experiment
from lab.experiments.comparison import beside_reported
from lab.experiments.experiment import BEGIN, END, Experiment
from lab.pictures import Bars
from lab.reported import DOCUMENTS, Reported
from lab.rows import Part, medians, side_by_side
from scripts.errors import ScriptError

KNOWN = command.EXPERIMENTS
STORED = [each for each in KNOWN.values() if each.stored() is not None]


def test_what_measures_a_reported_figure_is_an_experiment():
    assert {each.experiment for each in reported.REPORTED} - {None} <= set(KNOWN)


@pytest.mark.parametrize("one", STORED, ids=lambda one: one.name)
def test_the_page_and_the_picture_show_what_is_stored(one):
    page, svg = one.drawn()
    assert one.page.read_text() == page, "run `ensemble experiments pages`"
    assert (experiment.IMAGES / f"{one.name}.svg").read_text() == svg, "run `ensemble experiments pages`"


@pytest.mark.parametrize("one", STORED, ids=lambda one: one.name)
def test_what_was_measured_answers_reported_figures(one):
    figures = set(one.compare(one.summary(one.stored().rows)))
    assert figures or not reported.of(one.name)
    assert figures <= {each.subject for each in reported.of(one.name)}


@pytest.mark.parametrize("one", STORED, ids=lambda one: one.name)
def test_every_row_fills_the_table(one):
    rows = one.summary(one.stored().rows)
    lines = one.table(rows).lines
    assert len(lines) == len(one.tabled(rows))
    assert all(any(line[place] for line in lines) for place in range(2))


def test_every_experiment_has_a_place_on_one_page_and_the_index_links_it():
    index = (experiment.FOLDER / "index.md").read_text()
    assert [name for name, one in KNOWN.items() if f"[{name}]({one.page.name}#" not in index] == []


def place(text, name="arrivals"):
    return f"{BEGIN.format(name)}{text}\n{END.format(name)}"


@pytest.fixture
def counted(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(experiment, "IMAGES", tmp_path)
    (tmp_path / "page.md").write_text(f"# Mine\n{place('old')}learned\n{place('theirs', 'other')}")
    seen = []

    def measure(seconds):
        seen.append(seconds)
        yield {"way": "this", "rate": 7}

    one = Experiment(
        name="arrivals",
        title="Rate",
        setting="Images",
        parts=lambda seconds: [Part("all", lambda: measure(seconds))],
        columns="sent by {way} | rate, 1/s {rate:.1f} | lost {lost:d}",
        picture=Bars("rate", "{way}", "{rate}"),
        seconds=3,
        computed=lambda rows: {reported.of("arrivals")[0].subject: "seven"},
        differs="all",
    )
    return one, seen, tmp_path


def test_a_run_writes_its_files_and_is_not_repeated(counted):
    one, seen, folder = counted
    assert one.run(None, again=False)
    assert not one.run(None, again=False)
    assert one.run(2, again=True)
    assert seen == [3, 2]
    assert one.stored().rows == [{"way": "this", "rate": 7}]
    page = (folder / "page.md").read_text()
    assert page.startswith("# Mine\n")
    assert page.endswith(f"learned\n{place('theirs', 'other')}")
    assert "| gRPC | seven |" in page
    assert ", model not stated, hardware not stated. " in page
    assert f"commit `{one.stored().commit}`, 2 s of each load. [All rows](arrivals.json)" in page
    assert "old" not in page


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("way {way}", "Requests per row: 300 to 1,200; failed: 2. "),
        ("way {way} | requests {requests:,}", "Failed: 2. "),
        ("way {way} | requests {requests:,} | failed {failed}", ""),
    ],
)
def test_requests_and_failures_without_a_column_are_told_below_the_table(counted, columns, told):
    one = replace(counted[0], columns=columns)
    rows = [{"way": str(count), "requests": count, "failed": 1} for count in (1200, 300)]
    assert one._counted([*rows, {"way": "peer", "error": "no"}]) == told


def test_a_page_has_the_rows_of_an_experiment_that_compares_nothing(counted):
    one, _, folder = counted
    one = replace(one, name="other")
    one.run(None, again=False)
    page = (folder / "page.md").read_text()
    assert "| sent by | rate, 1/s | lost |\n| --- | ---: | ---: |\n| this | 7.0 |  |\n" in page
    assert place("old") in page


def test_a_page_tells_the_setting_that_was_measured(counted):
    one, _, folder = counted
    one.run(None, again=False)
    replace(one, setting="Others").draw()
    assert "Images. " in (folder / "page.md").read_text()


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
    (folder / "page.md").write_text(place("old"))
    command.draw([replace(one, name="missing"), one])
    assert "not measured yet, so nothing was drawn: missing" in capsys.readouterr().out
    assert "seven" in (folder / "page.md").read_text()


def test_an_interrupted_run_resumes_with_the_part_after(counted):
    def measured(name):
        asked.append(name)
        if asked == ["first", "second"]:
            raise KeyboardInterrupt
        return [{"way": name, "rate": 1}]

    asked, (one, _, folder) = [], counted
    one = replace(one, parts=lambda _: [Part(name, partial(measured, name)) for name in ("first", "second")])
    with pytest.raises(KeyboardInterrupt):
        one.run(None, again=True)
    assert one.stored() is None
    one.run(None, again=True)
    assert asked == ["first", "second", "second"]
    assert [row["way"] for row in one.stored().rows] == ["first", "second"]
    assert list(folder.glob("*.partial.json")) == []
    asked.clear()
    with pytest.raises(KeyboardInterrupt):
        one.run(None, again=True)
    # With other loads the first part is not what is wanted.
    one.run(5, again=True)
    assert asked == ["first", "second", "first", "second"]


def test_what_was_measured_before_an_error_stays_and_the_error_has_a_row_and_a_note(counted):
    def measured():
        yield {"rate": 1}
        raise ScriptError(f"the server did not start: {'x' * 999}\n  port\ttaken")

    first, last = Part("a", measured, {"way": "peer"}).rows()
    assert first == {"way": "peer", "rate": 1}
    assert last["error"].endswith("x port taken")
    assert len(last["error"]) == rows.LAST
    table = counted[0].table([first, last])
    assert table.lines == [["peer", "1.0", ""], ["peer", "", ""]]
    assert table.notes == [f"peer: not measured: {last['error']}"]
    with pytest.raises(ScriptError):
        Part("a", measured).rows()


def test_medians_are_of_rows_that_differ_in_nothing_else():
    rows = [{"way": way, "rate": rate} for rate in (1, 9, 2) for way in ("a", "b")]
    rows[3] = {"way": "b", "error": "no"}
    assert medians(rows, ["rate"]) == [{"way": "a", "rate": 2}, {"way": "b", "error": "no"}]


def test_counts_are_added_up_over_the_rounds():
    rounds = [{"way": "a", "requests": 100, "rate": rate, "told": told} for rate, told in ((3, ""), (1, "x"), (2, ""))]
    assert medians(rounds, ["rate", "told"]) == [{"way": "a", "requests": 300, "rate": 2, "told": "x"}]


def test_rows_that_differ_in_one_column_stand_side_by_side():
    rows = [{"way": way, "size": size, "ms": size * len(way)} for size in (1, 2) for way in ("a", "bb")]
    failed = {"way": "a", "error": "no"}
    one, two, last = side_by_side([*rows[:1], failed, *rows[1:]], "way", "size")
    assert (one["size"], one["a"]["ms"], one["bb"]["ms"]) == (1, 1, 2)
    assert (two["size"], two["a"]["ms"], two["bb"]["ms"]) == (2, 2, 4)
    assert last == failed


def test_every_part_has_its_turn_in_each_round_and_the_time_is_told_before(counted, capsys):
    one, seen, _ = counted
    one = replace(one, rounds=3, figures=("rate",), minutes=7)
    one.run(None, again=True)
    assert seen == [3, 3, 3]
    assert len(one.stored().rows) == 3
    assert len(one.summary(one.stored().rows)) == 1
    assert "arrivals: 3 of 3 parts are left, about 7 minutes\n" in capsys.readouterr().out
    one.run(1, again=True)
    assert "about 7 minutes at the default length\n" in capsys.readouterr().out


def test_a_row_of_too_few_requests_stands_beside_no_reported_figure(counted):
    one, _, _ = counted
    one = replace(one, row="{way}", beside={"time": "{at[this][ms]:.1f} ms"}, computed=lambda _: {})
    rows_of = {count: [{"way": "this", "requests": count, "ms": 2.0}] for count in (rows.FEWEST - 1, rows.FEWEST)}
    assert [one.compare(each) for each in rows_of.values()] == [{}, {"time": "2.0 ms"}]


STORED_RESULTS = sorted([*experiment.FOLDER.glob("*.json"), *experiment.FOLDER.with_name("benchmarks").glob("*.json")])


def refuse(constant):
    raise ValueError(f"{constant} is no JSON")


@pytest.mark.parametrize("file", STORED_RESULTS, ids=lambda file: file.stem)
def test_a_stored_result_is_valid_json(file):
    assert json.loads(file.read_text(), parse_constant=refuse)


def test_a_result_that_is_no_valid_json_is_not_stored(counted):
    one, _, _ = counted
    before = one.run(None, again=False) and one.stored()
    one = replace(one, parts=lambda _: [Part("all", lambda: [{"way": "this", "rate": float("inf")}])])
    with pytest.raises(ValueError, match="JSON"):
        one.run(None, again=True)
    assert one.stored() == before


def test_the_list_tells_how_long_each_takes_and_how_old_it_is(counted):
    one, _, _ = counted
    one.run(None, again=False)
    [line] = command.listed([one]).lines
    assert line[:2] == ["arrivals", "0"]
    assert line[4] == "0"


def test_a_page_without_a_place_for_the_tables_is_reported(counted):
    one, _, folder = counted
    (folder / "page.md").write_text("# Mine\n")
    with pytest.raises(ScriptError, match=r"^0 pages in .* have the line <!-- arrivals: written by"):
        one.run(None, again=False)
    (folder / "page.md").write_text(BEGIN.format("arrivals"))
    with pytest.raises(ScriptError, match=r"^page\.md has no line <!-- end of arrivals -->"):
        one.draw()


def test_all_that_is_missing_is_told_before_anything_starts(counted, monkeypatch):
    monkeypatch.setattr(experiment, "default_data", lambda: None)
    one, seen, _ = counted
    with pytest.raises(ScriptError, match=r"arrivals: no_such, nor_this missing: make train.*; b: set ENSEMBLE_DATA"):
        command.check(
            [replace(one, needs=["no_such", "nor_this"]), replace(one, name="b", needs=["labelled images"]), one]
        )
    assert seen == []


@pytest.mark.parametrize("name", ["hops", "scaling"])
def test_networks_that_can_not_be_made_are_told_before_anything_starts(name, monkeypatch):
    def fail():
        raise ScriptError("no NNCF")

    monkeypatch.setitem(experiment.DATA_NEEDED, "photographs", lambda: None)
    monkeypatch.setitem(experiment.DATA_NEEDED, "ImageNet's networks", fail)
    with pytest.raises(ScriptError, match=f"{name}: no NNCF"):
        command.check([command.EXPERIMENTS[name]])


def test_an_unknown_name_lists_the_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", "none"])
    with pytest.raises(SystemExit):
        command.main()
    printed = capsys.readouterr().err
    assert [name for name in KNOWN if name not in printed] == []


INTEL = DOCUMENTS["Intel"]
RATE = Reported(
    INTEL, "Table 3", "rate", "images/s", "1.1", "a rate", 763, model="ResNet", hardware="one", experiment="precision"
)
TIME = Reported(
    INTEL, "Table 1", "time", "ms", "1.1", "a time", 26.9, model="ResNet", hardware="two", experiment="precision"
)


def test_what_all_figures_have_becomes_a_sentence_and_other_hardware_stands_beside_its_figure():
    made = beside_reported([RATE, TIME], {"rate": "seven", "time": "a ms"}, "cores")
    assert made.startswith("| figure | reported | here |\n")
    assert "| rate | 763 images/s (one) | seven |\n" in made
    assert made.endswith("Every reported figure: by Intel, model ResNet. Differences here: cores.\n")


def test_documents_have_a_column_where_there_are_several():
    other = replace(TIME, document=DOCUMENTS["NAVER"])
    made = beside_reported([RATE, other], {"rate": "seven", "time": "a ms"}, "cores")
    assert made.startswith("| reported by | figure | reported | here |\n")
    assert "| NAVER | time | 26.9 ms (two) | a ms |\n" in made
    assert made.endswith("Every reported figure: model ResNet. Differences here: cores.\n")


def test_a_figure_that_was_not_measured_is_listed():
    made = beside_reported([RATE, TIME], {"rate": "seven"}, "cores")
    assert "| time |" not in made
    assert made.endswith("Reported, but not measured here, or with too few requests: time: 26.9 ms (two).\n")


def test_what_most_figures_have_becomes_a_sentence_and_the_others_say_what_they_have():
    others = [replace(TIME, subject="other"), replace(TIME, subject="third", hardware="")]
    figures = [RATE, TIME, *others, replace(TIME, subject="fourth")]
    made = beside_reported(figures, dict.fromkeys(("rate", "time", "other", "third", "fourth"), "six"), "cores")
    assert "Every reported figure, unless it names another: by Intel, model ResNet, hardware two. " in made
    assert "| rate | 763 images/s (one) | six |\n| time | 26.9 ms | six |\n" in made
    assert "| third | 26.9 ms (hardware not stated) | six |\n" in made


def test_nothing_measured_is_no_table():
    assert beside_reported([RATE], {}, "cores") == ""
