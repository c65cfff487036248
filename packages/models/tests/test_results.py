"""A table and its files."""

import json
from types import SimpleNamespace

from ensemble_models.options import Table, write_files

TABLE = Table(("what", "how", "many"), [["a", "b", "1"], ["c", "d", "22"]], words=range(2), title="Things")


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
    names = {"json": "t.json", "markdown": "t.md"}
    args = SimpleNamespace(**{kind: tmp_path / name for kind, name in names.items()})
    write_files(args, TABLE, [{"a": 1}])
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": 1}]
    assert (tmp_path / "t.md").read_text() == TABLE.markdown()
    write_files(SimpleNamespace(json=None), TABLE, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
