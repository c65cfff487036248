import json

import pytest

from lab.experiments import cost
from lab.experiments.cost import (
    HOURS_A_MONTH,
    break_even,
    machines,
    one_at_a_time,
    per_million,
    price_of_calls,
    saving,
    setups,
)
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT


@pytest.mark.parametrize(
    ("price", "latency", "dollars"), [(0.538, 76, 11.358), (0.266, 55, 4.064), (4.627, 33, 42.414)]
)
def test_the_reported_machines_cost_so_much_per_million(price, latency, dollars):
    assert one_at_a_time(price, latency) == pytest.approx(dollars, abs=0.001)


def test_the_smallest_reported_machine_saves_what_is_reported():
    # 64 % against the first machine; 35 to 65 % are reported.
    assert 35 <= saving(one_at_a_time(0.538, 76), one_at_a_time(0.266, 55)) <= 65


def test_the_reported_break_even_is_a_price_per_call():
    price = price_of_calls(0.538, 7.5e6)
    assert price == pytest.approx(52.37, abs=0.01)
    assert break_even(0.538, price) == pytest.approx(7.5e6)


def test_the_reported_sum_is_a_number_of_machines_for_a_year():
    # The notes have the sum alone: it is what 73 machines of the first price cost.
    year = 12 * HOURS_A_MONTH
    assert round(343_000 / (0.538 * year)) == 73
    assert 73 * 0.538 * year == pytest.approx(343_000, rel=0.01)


def test_an_idle_machine_costs_the_same():
    assert per_million(1.0, 100, 0.1) == pytest.approx(10 * per_million(1.0, 100))


@pytest.mark.parametrize(("load", "count"), [(1, 1), (70, 1), (71, 2), (1000, 15)])
def test_machines_are_not_filled_up(load, count):
    assert machines(load, 100) == count


def test_rows_of_each_kind_are_read():
    zoo = {"setup": {"members": ["a", "b"], "precision": "int8", "exit_at": 0.7}, "requests_per_s": 5.0}
    assert [each.name for each in setups([zoo])] == ["a and b, exit at 0.7, int8"]
    assert [each.name for each in setups([{"step": "batching", "requests_per_s": 5.0}])] == ["batching"]
    rows = [
        {"system": "ours", "placement": "separate", "clients": clients, "protocol": protocol, "requests_per_s": 1.0}
        for clients in (1, 32)
        for protocol in ("http", "grpc")
    ]
    assert [each.name for each in setups(rows)] == ["ours separate"]


def test_other_rows_are_refused():
    with pytest.raises(ScriptError, match="not those of"):
        setups([{"form": "JPEG"}])


def test_the_command_computes_from_stored_rows(tmp_path, capsys):
    rows, found = tmp_path / "rows.json", tmp_path / "cost.json"
    rows.write_text(json.dumps([{"step": "slow", "requests_per_s": 50.0}, {"step": "fast", "requests_per_s": 100.0}]))
    cost.main(["--rows", str(rows), "--json", str(found), "--price-per-hour", "3.6", "--load", "70"])
    slow, fast = json.loads(found.read_text())
    assert (slow["per_million"][0], fast["per_million"][0]) == (pytest.approx(20.0), pytest.approx(10.0))
    assert (slow["saving"], fast["saving"]) == (0, 50)
    assert (slow["machines"], fast["machines"]) == (2, 1)
    assert "Joules" in capsys.readouterr().out


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"none\.json"):
        cost.main(["--rows", str(tmp_path / "none.json")])


def test_the_page_has_what_is_stored():
    folder = CHECKOUT / "docs" / "experiments"
    records = json.loads((folder / "cost.json").read_text())
    assert cost.table(records, 1000.0).markdown() in (folder / "cost.md").read_text()


def test_what_is_stored_follows_from_what_was_measured():
    records = json.loads((CHECKOUT / "docs" / "experiments" / "cost.json").read_text())
    for file in cost.FILES:
        rates = [each.requests_per_s for each in setups(json.loads(file.read_text()))]
        assert [each["requests_per_s"] for each in records if each["source"] == file.stem] == rates


def test_the_page_has_the_arithmetic_of_the_reported_figures():
    page = (CHECKOUT / "docs" / "experiments" / "cost.md").read_text()
    for price, latency in ((0.538, 76), (0.266, 55), (4.627, 33)):
        row = f"| {latency} ms at ${price} per hour | {latency} ms | ${one_at_a_time(price, latency):.2f} per million"
        assert row in page
    assert f"${price_of_calls(0.538, 7.5e6):.2f} per million calls" in page
