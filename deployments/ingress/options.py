"""Reads a request's options, from wherever its protocol has them; each way ends in one `Options`."""

from collections.abc import Mapping
from reprlib import Repr
from typing import Any

import msgspec

from deployments.contract.errors import InvalidParameter
from deployments.contract.options import Options

NAMES = frozenset(Options.__struct_fields__)
# Triton's name for the parameter of a request's deadline.
TIMEOUT = "timeout"
# Characters of a value of the caller's that an error quotes; of an option that is text, and of a request's id.
MOST_QUOTED, MOST_OF_TEXT = 40, 1000
BEGINNING = Repr()
BEGINNING.maxlevel, BEGINNING.maxstring, BEGINNING.maxlong = 2, 3 * MOST_QUOTED, 3 * MOST_QUOTED


def from_parameters(parameters: Mapping[str, Any]) -> Options:
    """Read the options among the parameters of the Open Inference Protocol; ignore others, such as a client's own.

    Of Triton's own, `timeout` is the deadline in microseconds, and `priority` has the same meaning as there.

    Raises:
        InvalidParameter: one is of the wrong type or out of bounds.
    """
    known = {name: value for name, value in parameters.items() if name in NAMES}
    if timeout := parameters.get(TIMEOUT):
        if type(timeout) is not int:
            raise InvalidParameter(f"{TIMEOUT} is a number of microseconds; timeout_ms has milliseconds")
        known.setdefault("timeout_ms", -(-timeout // 1000))
    return _convert(known)


def from_keywords(keywords: Mapping[str, Any], strict: bool = True) -> Options:
    """Read the options of a call by handle, or, unless `strict`, of an HTTP query, whose values are text.

    Raises:
        InvalidParameter: one is unknown, of the wrong type or out of bounds.
    """
    if unknown := sorted(set(keywords) - NAMES):
        raise InvalidParameter(f"there is no parameter {unknown[0][:MOST_QUOTED]!r}; there are {sorted(NAMES)}")
    return _convert(dict(keywords), strict)


def _convert(values: dict[str, Any], strict: bool = True) -> Options:
    if not values:
        return DEFAULT
    for name, value in values.items():
        # msgspec's error would quote all of it.
        if isinstance(value, str):
            check_text(name, value)
    try:
        return msgspec.convert(values, Options, strict=strict)
    except UnicodeError as err:
        # JSON can hold half a character, which no text of UTF-8 can.
        raise InvalidParameter(f"the value of one of {sorted(values)} is no text") from err
    except msgspec.ValidationError as err:
        # As in "Expected `int` >= 1 - at `$.top_k`".
        problem, _, path = str(err).replace(" | null", "").partition(" - at ")
        name = path.strip("`").removeprefix("$.")
        raise InvalidParameter(f"{name}: {problem.lower()}; got {quoted(values.get(name))}") from err


def check_text(name: str, text: str) -> None:
    """Raise InvalidParameter for a text that is too long for an option, or for a request's id."""
    if len(text) > MOST_OF_TEXT:
        raise InvalidParameter(f"{name}: it has more than {MOST_OF_TEXT} characters; got {quoted(text)}")


def quoted(value: Any) -> str:
    """Return the beginning of the text of a caller's value, without writing all of it."""
    return BEGINNING.repr(value)[:MOST_QUOTED]


DEFAULT = Options()
