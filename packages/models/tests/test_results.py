"""A table and its files."""

import json
from argparse import ArgumentParser

import pytest

from ensemble_models.results import Table, add_files, check_files, write_files

TABLE = Table(("what", "how", "many"), [["a", "b", "1"], ["c", "d", "22"]], words=range(2), title="Things")


def flags(*kinds):
    parser = ArgumentParser()
    add_files(parser, *kinds)
    return parser


def test_words_are_aligned_left_and_numbers_right(capsys):
    assert TABLE.markdown().splitlines() == [
        "| what | how | many |",
        "| --- | --- | ---: |",
        "| a | b | 1 |",
        "| c | d | 22 |",
    ]
    TABLE.show()
    printed = capsys.readouterr().out
    assert "Things" in printed
    assert "│ a    │ b   │    1 │" in printed


def test_the_files_that_were_asked_for_are_written(tmp_path):
    parser = flags()
    names = {"--json": "t.json", "--markdown": "t.md", "--plot": "t.svg"}
    args = parser.parse_args([text for flag, name in names.items() for text in (flag, str(tmp_path / name))])
    check_files(parser, args)
    write_files(args, TABLE, [{"a": 1}], lambda file: file.write_text("drawn"))
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": 1}]
    assert (tmp_path / "t.md").read_text() == TABLE.markdown()
    assert (tmp_path / "t.svg").read_text() == "drawn"
    write_files(parser.parse_args([]), TABLE, [], None)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())


def test_a_file_without_a_folder_is_told_before_the_work(tmp_path, capsys):
    parser = flags("markdown")
    with pytest.raises(SystemExit):
        check_files(parser, parser.parse_args(["--markdown", str(tmp_path / "no" / "t.md")]))
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser.parse_args(["--plot", "t.svg"])
