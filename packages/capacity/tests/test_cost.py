import json
import sys

import pytest

from ensemble_capacity.cost import Instance, main


def run(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["cost", *flags])
    main()


def test_a_machine_that_idles_costs_as_much_per_hour_and_more_per_call():
    busy, idle = (Instance("mine", 3.6, 100.0).cost(traffic, 0.7) for traffic in (70.0, 7.0))
    assert (busy.machines, idle.machines) == (1, 1)
    assert (busy.idle, idle.idle) == (pytest.approx(30), pytest.approx(93))
    assert idle.per_million == pytest.approx(10 * busy.per_million)


@pytest.mark.parametrize(("traffic", "count"), [(1, 1), (70, 1), (71, 2), (1000, 15)])
def test_machines_are_not_filled_up(traffic, count):
    assert Instance("mine", 1.0, 100.0).cost(traffic, 0.7).machines == count


def test_naver_s_sum(monkeypatch, tmp_path):
    run(
        monkeypatch,
        "--instance",
        "gpu:1.306",
        "--machines",
        "30",
        "--requests-per-s",
        "9",
        "--json",
        str(tmp_path / "cost.json"),
    )
    [cost] = json.loads((tmp_path / "cost.json").read_text())
    assert cost["per_year"] == pytest.approx(1.306 * 24 * 365 * 15 * 2) == pytest.approx(343_217, abs=1)


def test_the_table_has_every_machine(monkeypatch, capsys):
    run(monkeypatch, "--instance", "small:0.1:50", "large:1:900", "--requests-per-s", "100")
    printed = capsys.readouterr().out
    assert "100 requests/s, 263 million per month" in printed
    assert "small" in printed
    assert "large" in printed


@pytest.mark.parametrize("text", ["mine", "mine:", ":1", "mine:0", "mine:1:2:3", "mine:nan", "mine:1:-2"])
def test_an_instance_without_a_price_is_refused(monkeypatch, capsys, text):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--requests-per-s", "1", "--instance", text)
    assert "NAME:DOLLARS_PER_HOUR" in capsys.readouterr().err
