"""The page on the design names functions that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (\d+) \| `([\w.]+)` \| `([\w/]+\.py)` \|")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path):
    """The functions and methods of a file, by the names that the page may give them."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, Function):
            yield from (node.name, f"{path.stem}.{node.name}")
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{each.name}" for each in node.body if isinstance(each, Function))


def test_the_way_of_an_image_is_made_of_functions_that_exist():
    rows = ROW.findall((ROOT / "docs" / "design.md").read_text())
    assert [int(number) for number, *_ in rows] == list(range(1, 26))
    assert [(name, path) for _, name, path in rows if name not in functions(ROOT / path)] == []
