"""The rules of CONTRIBUTING that a program can check: how long files and functions are, and how complex."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED = ("graph", "deployments", "scripts", "packages", "lab")
MOST_LINES, MOST_LINES_OF_FUNCTION, MOST_COMPLEXITY, MOST_COMPLEX = 300, 60, 10, 0.015
# Files that are longer, and the most lines that each may have: no file joins them.
LONGER = {
    "lab/benchmark/systems.py": 310,
    "lab/benchmark/workloads.py": 330,
    "lab/faults/fuzz/requests.py": 310,
    "packages/plugins/sources/ensemble_sources/mirror.py": 310,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler),
    *(ast.comprehension, ast.Assert),
)


def sources(*folders):
    """Each file of these folders that somebody wrote, and that is no test."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            if not {"tests", "build", ".venv"} & {*name.parts} and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                yield name.as_posix(), path.read_text()


def complexity(function):
    """1, and 1 for each branch, and for each operand of a boolean operation but its first; in nested functions, too."""
    nodes = list(ast.walk(function))
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + operands + sum(isinstance(node, BRANCHES) for node in nodes)


def functions():
    """Each function of the server, with its place."""
    for name, text in sources("graph", "deployments"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                yield f"{name}:{node.lineno} {node.name}", node


def test_a_file_has_at_most_300_lines():
    long = {name: lines for name, text in sources(*SHIPPED) if (lines := text.count("\n")) > MOST_LINES}
    assert {name: lines for name, lines in long.items() if lines > LONGER.get(name, 0)} == {}
    # Who shortens a file takes it from the list.
    assert {name for name in LONGER if name not in long} == set()


def test_no_function_has_more_than_60_lines():
    assert [place for place, f in functions() if f.end_lineno - f.lineno >= MOST_LINES_OF_FUNCTION] == []


def test_few_functions_are_complex():
    found = {place: complexity(function) for place, function in functions()}
    many = sorted(((number, place) for place, number in found.items() if number > MOST_COMPLEXITY), reverse=True)
    assert len(many) <= MOST_COMPLEX * len(found), "\n".join(f"{number} {place}" for number, place in many)
