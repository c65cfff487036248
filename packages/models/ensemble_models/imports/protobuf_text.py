"""Reads the text form of protobuf messages without their schema: every field is listed, known or not."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from ensemble_models.exporters.names import read_text
from scripts.errors import ScriptError

MOST_DEPTH = 32
CLOSING = {"{": "}", "<": ">"}
# Fields of Triton's configurations that may be there several times; of another one the last holds.
REPEATED = frozenset(
    {"input", "output", "instance_group", "step", "input_map", "output_map", "parameters", "versions", "dims"}
    | {"preferred_batch_size", "model_warmup", "batch_input", "batch_output", "priority_queue_policy", "gpus"}
    | {"cc_model_filenames", "metric_tags", "cpu_execution_accelerator", "gpu_execution_accelerator"}
)


def read(file: Path) -> dict[str, Any]:
    """Read a message as a mapping: scalars, mappings, and lists of them for `REPEATED` fields.

    Raises:
        ScriptError: it is no message, or too large or deep.
    """
    tokens = text_format.Tokenizer(read_text(file).splitlines())
    try:
        return _message(tokens, None, 0)
    except (text_format.ParseError, ValueError) as err:
        raise ScriptError(f"{file} is no text of a protobuf message: {err}") from None


def _message(tokens: Any, closing: str | None, depth: int) -> dict[str, Any]:
    if depth > MOST_DEPTH:
        raise ValueError(f"messages are nested more than {MOST_DEPTH} times")
    fields: dict[str, Any] = {}
    while not (tokens.AtEnd() if closing is None else tokens.TryConsume(closing)):
        name = tokens.ConsumeIdentifier()
        has_colon = tokens.TryConsume(":")
        values = _values(tokens, depth, has_colon)
        if name in REPEATED:
            fields.setdefault(name, []).extend(values)
        elif values:
            fields[name] = values[-1]
        tokens.TryConsume(",") or tokens.TryConsume(";")
    return fields


def _values(tokens: Any, depth: int, has_colon: bool) -> list[Any]:
    if not tokens.TryConsume("["):
        return [_value(tokens, depth, has_colon)]
    found: list[Any] = []
    while not tokens.TryConsume("]"):
        found.append(_value(tokens, depth, has_colon))
        tokens.TryConsume(",")
    return found


def _value(tokens: Any, depth: int, has_colon: bool) -> Any:
    for opening, closing in CLOSING.items():
        if tokens.TryConsume(opening):
            return _message(tokens, closing, depth + 1)
    if not has_colon or not tokens.token:
        raise ValueError(f"there is no value before {tokens.token!r}")
    if tokens.token[0] in "'\"":
        return tokens.ConsumeString()
    word = tokens.token
    tokens.NextToken()
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False}.get(word, word)


def pairs(entries: list[Any]) -> dict[str, Any]:
    """Return a map field, a list of entries with `key` and `value`, as a mapping."""
    return {str(each.get("key", "")): each.get("value") for each in entries if isinstance(each, dict)}
