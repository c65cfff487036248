"""Options with several values, and mistakes in one line."""

from __future__ import annotations

import logging

import click
import pytest

from ensemble_models.options import Command, Number, OutputFile
from scripts.errors import ScriptError


@click.command("shown", cls=Command)
@click.argument("url")
@click.option("--rate", type=Number(), multiple=True)
@click.option("--out", type=OutputFile())
def shown(url, rate, out):
    """Show what was given."""
    logging.getLogger("ray.serve").info("what a replica measured")
    if url == "wrong":
        raise ScriptError("this is\nwrong")
    print(url, rate, out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["u"], "u () None"),
        (["u", "--rate", "1", "2", "0.5"], "u (1.0, 2.0, 0.5) None"),
        (["u", "--rate", "1", "2", "--out", "f", "--rate", "3"], "u (1.0, 2.0, 3.0) f"),
        (["--out", "f", "u", "--rate=4"], "u (4.0,) f"),
    ],
)
def test_an_option_takes_several_values_in_a_row(arguments, expected, capsys):
    shown.main(arguments)
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize("wrong", [["--rate", "0"], ["--rate", "nan"], ["--rate", "inf"], ["--rate"], ["--no"], []])
def test_a_wrong_command_line_is_one_line(wrong, capsys):
    with pytest.raises(SystemExit) as end:
        shown.main(["u", *wrong] if wrong else [])
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("ensemble shown: ")


def test_a_mistake_is_one_line():
    with pytest.raises(SystemExit, match=r"^error: this is wrong$"):
        shown.main(["wrong"])


def test_what_the_server_s_code_logs_as_information_is_no_result(caplog):
    with caplog.at_level(logging.INFO, "ray.serve"):
        shown.main(["u"])
        assert not caplog.records
        logging.getLogger("ray.serve").info("later")
    assert [record.message for record in caplog.records] == ["later"]
