"""The core names no feature: identifiers, fields and texts of `graph`, `deployments` and `scripts` are read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

CORE = ("graph", "deployments", "scripts")
# The words of this project's plugins. `page` and `loading` are also other things: only their sections and paths count.
WORDS = re.compile(
    r"cache|cascad|canar|shadow|feedback|unload|receipt|seldon|tensorflow|redis|onnxruntime|shared_?memory|rollout"
    r"|toleran|ladder|\brungs?\b|\beased\b|`page`|`loading`|/page/|(?-i:^page$|^loading$)|\bpage\.\w",
    re.IGNORECASE,
)
FUNCTOOLS = {"cache", "cached_property", "lru_cache"}
# What may be named nevertheless, by the file, and why.
ALLOWED = {
    "a request's option, header or error, or a field of an answer, which clients know": {
        "deployments/contract/answer.py": r"Receipt",
        "deployments/contract/options.py": r"cache|receipt|no-cache|.*`no-store` also caches nothing",
        "deployments/ingress/classify.py": r"(has_)?cache",
        "deployments/ingress/ingress.py": r"cache|Unloaded",
        "deployments/ingress/open_inference/http.py": r"Unloaded",
        "deployments/ingress/headers.py": r"cache|no-cache|cache-control|.*`Cache-Control` controls.*",
        "deployments/ingress/protocol.py": r"shared_memory_region",
        "deployments/ingress/routes.py": r"cache|Unloaded",
        "deployments/ingress/statistics.py": r"cache_(hit|miss)",
        "deployments/serving/ingress_replica.py": r".*`quality`, `cache`, \.\.\..*",
    },
    "OpenVINO's argument": {
        "deployments/members/predictor.py": r"shared_memory",
    },
    "the user's cache folder": {
        "deployments/members/openvino_autotune.py": r"user_cache|.*user's cache folder.*|.*`user_cache`.*",
        "deployments/repository/repository.py": r"user_cache|XDG_CACHE_HOME|\.cache|.*user's cache folder.*",
    },
    "the page of Swagger UI": {"deployments/ingress/http/documents.py": r"page"},
    "the start's words for what the server has at its root": {"scripts/serve/server.py": r"page"},
}


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the identifiers and the texts of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        for field in ("id", "attr", "name", "arg", "module", "asname"):
            if isinstance(found := getattr(node, field, None), str):
                yield found


def named(file: Path) -> set[str]:
    """Return the texts of a module that name a feature and may not."""
    source = file.read_text(encoding="utf-8")
    place, found = file.relative_to(ROOT).as_posix(), set(filter(WORDS.search, texts(ast.parse(source))))
    allowed = [each[place] for each in ALLOWED.values() if place in each]
    found = {text for text in found if not any(re.fullmatch(each, text, re.DOTALL) for each in allowed)}
    return found - FUNCTOOLS if "from functools import" in source else found


MODULES = [file for top in CORE for file in sorted((ROOT / top).rglob("*.py"))]


def test_no_module_of_the_core_names_a_feature():
    found = {file.relative_to(ROOT).as_posix(): each for file in MODULES if (each := named(file))}
    assert found == {}


def test_nothing_is_allowed_that_is_not_there():
    for allowed in ALLOWED.values():
        for place, pattern in allowed.items():
            there = set(texts(ast.parse((ROOT / place).read_text(encoding="utf-8"))))
            assert any(WORDS.search(text) and re.fullmatch(pattern, text, re.DOTALL) for text in there), place


@pytest.mark.parametrize("source", ["cascade = 1", "x = {'canary': 1}", "def f(redis): ...", "a.shadows"])
def test_a_name_is_seen_wherever_it_stands(source):
    assert any(map(WORDS.search, texts(ast.parse(source))))
