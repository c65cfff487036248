import json
import sys

import pytest

from ensemble_capacity.cost import INSTANCES, TRAFFIC, Instance, main


def run(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["cost", *flags])
    main()


@pytest.mark.parametrize(("number", "dollars"), [(0, 345), (1, 171), (2, 2966)])
def test_the_document_s_machines_cost_so_much_at_its_traffic(number, dollars):
    assert INSTANCES[number].cost(TRAFFIC, 0.7).per_million == pytest.approx(dollars, abs=0.5)


def test_a_machine_that_idles_costs_as_much_per_hour_and_more_per_call():
    busy, idle = (Instance("mine", 3.6, 100.0).cost(traffic, 0.7) for traffic in (70.0, 7.0))
    assert (busy.machines, idle.machines) == (1, 1)
    assert (busy.idle, idle.idle) == (pytest.approx(30), pytest.approx(93))
    assert idle.per_million == pytest.approx(10 * busy.per_million)


@pytest.mark.parametrize(("traffic", "count"), [(1, 1), (70, 1), (71, 2), (1000, 15)])
def test_machines_are_not_filled_up(traffic, count):
    assert Instance("mine", 1.0, 100.0).cost(traffic, 0.7).machines == count


def test_naver_s_sum(monkeypatch, tmp_path):
    run(monkeypatch, "--instance", "gpu:1.306", "--machines", "30", "--json", str(tmp_path / "cost.json"))
    [cost] = json.loads((tmp_path / "cost.json").read_text())
    assert cost["per_year"] == pytest.approx(1.306 * 24 * 365 * 15 * 2) == pytest.approx(343_217, abs=1)


def test_a_price_per_call_has_a_break_even(monkeypatch, capsys):
    run(monkeypatch, "--instance", "mine:0.1:50", "--per-million-calls", "73")
    assert "costs less than $73 per million calls from 1.00 million calls per month on" in capsys.readouterr().out
    run(monkeypatch, "--instance", "slow:0.1:0.3", "--per-million-calls", "73", "--requests-per-s", "0.1")
    assert "slow answers too few requests" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["mine", "mine:", ":1", "mine:0", "mine:1:2:3", "mine:nan", "mine:1:-2"])
def test_an_instance_without_a_price_is_refused(monkeypatch, capsys, text):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--instance", text)
    assert "NAME:DOLLARS_PER_HOUR" in capsys.readouterr().err
