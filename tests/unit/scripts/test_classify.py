import io
import json
from pathlib import Path

from rich.console import Console

from scripts.classify import show, to_json

ANSWER = {
    "label": "cat",
    "top": [{"label": "cat", "index": 3, "probability": 0.9}, {"label": "dog", "index": 5, "probability": 0.05}],
    "members": {"resnet": {"label": "cat", "index": 3, "probability": 0.95}},
}


def printed(table, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_a_row_for_each_class_and_a_line_for_an_error():
    text = printed(show([(Path("a.jpg"), ANSWER), (Path("[b].txt"), "not an image")], members=True))
    for told in ("a.jpg", "cat", "0.9000", "dog", "resnet: cat 0.950", "[b].txt", "not an image"):
        assert told in text


def test_of_a_long_path_the_end_is_shown():
    path = Path("/photographs") / ("deep" * 30) / "the-cat.jpg"
    assert "the-cat.jpg" in printed(show([(path, ANSWER)], members=False))


def test_json_has_a_line_for_each_photograph():
    lines = to_json([(Path("a.jpg"), ANSWER), (Path("b.txt"), "not an image")]).splitlines()
    assert json.loads(lines[0]) == {"path": "a.jpg", **ANSWER}
    assert json.loads(lines[1]) == {"path": "b.txt", "error": "not an image"}
