"""The page on the Python interfaces, made of signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any

from deployments.serving.ingress_replica import IngressReplica
from ensemble_rollout.feedback.feature import Feedback
from ensemble_serving import Client, NoResponse, ResponseTimeout
from graph import app
from lab.reference.markdown import code

INTRODUCTION = """# Python

A program sends images by the client, or by a Serve handle on the same Ray cluster. `graph.app` builds the application.
Results are objects with the fields of [`Classification`](http.md#classification). Errors are classes of
`ensemble_serving.errors`, one per [code](errors.md), with `EnsembleError` as their base.
"""
HANDLE = """`ray.serve.get_app_handle("ensemble")` returns the handle. A call is `handle.classify.remote(...)`;
`.result()` or `await` returns its result.
"""
PARTS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "Client: `from ensemble_serving import Client`": (
        "",
        {
            "Client": Client,
            "Client.classify": Client.classify,
            "Client.as_completed": Client.as_completed,
            "Client.submit": Client.submit,
            "Client.close": Client.close,
            "NoResponse": NoResponse,
            "ResponseTimeout": ResponseTimeout,
        },
    ),
    "Handle": (HANDLE, {"handle.classify": IngressReplica.classify, "handle.feedback": Feedback.feedback}),
    "Application: `graph.app`": ("", {"build": app.build, "application": app.application}),
}
# A section of a docstring in Google's style, and an entry of one with its continued lines.
SECTION = re.compile(r"^(Args|Raises|Yields|Returns):\n((?:    .*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
EXAMPLE = re.compile(r"\n\n((?:    .*(?:\n|$))+)")


def page() -> str:
    """Write the page: a section for each interface, with a heading for each class and function."""
    parts = [INTRODUCTION]
    for title, (text, objects) in PARTS.items():
        parts += [f"## {title}\n", *([text] if text else [])]
        parts += [_described(name, documented) for name, documented in objects.items()]
    return "\n".join(parts)


def _described(name: str, documented: Callable[..., Any]) -> str:
    text = inspect.getdoc(documented) or ""
    if isinstance(documented, type) and issubclass(documented, Exception):
        return f"### {name}\n\n{text}\n"
    if isinstance(documented, type):
        # The arguments of a class are described at its `__init__`.
        made = inspect.getdoc(vars(documented)["__init__"]) or ""
        text = "\n\n".join([text, made.partition("\n")[2].strip()])
    return f"### {name}\n\n```python\n{name}{_signature(documented)}\n```\n\n{_docstring(text)}"


def _signature(documented: Callable[..., Any]) -> str:
    signature = inspect.signature(documented)
    named = [each for name, each in signature.parameters.items() if name != "self"]
    # Annotations are texts, in quotes.
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=named)))


def _docstring(text: str) -> str:
    """Write a docstring as Markdown: its sections as lists, its example as code."""
    sections = [
        f"{title}:\n\n" + "".join(f"- {code(name)}: {' '.join(said.split())}\n" for name, said in ENTRY.findall(body))
        if ENTRY.search(body)
        else f"{title}: {' '.join(body.split())}\n"
        for title, body in SECTION.findall(text)
    ]
    prose = EXAMPLE.sub(lambda found: f"\n\n```python\n{dedent(found[1]).strip()}\n```\n", SECTION.sub("", text))
    return "\n".join([f"{prose.strip()}\n", *sections])
