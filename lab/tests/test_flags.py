"""The flags of the laboratory's commands."""

from argparse import ArgumentParser

import pytest

from lab.flags import add_files, check_files


def flags(*kinds):
    parser = ArgumentParser()
    add_files(parser, *kinds)
    return parser


def test_every_file_has_a_flag():
    assert vars(flags().parse_args(["--json", "t"])).keys() == {"json", "markdown"}


def test_a_file_without_a_folder_is_told_before_the_work(tmp_path, capsys):
    parser = flags("markdown")
    with pytest.raises(SystemExit):
        check_files(parser, parser.parse_args(["--markdown", str(tmp_path / "no" / "t.md")]))
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser.parse_args(["--plot", "t.svg"])
