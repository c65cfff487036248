"""Reads a request's options, from wherever its protocol has them; each way ends in one `Options`."""

from collections.abc import Callable, Mapping
from functools import cache
from reprlib import Repr
from typing import Any

import msgspec

from deployments.contract.errors import InvalidParameter
from deployments.contract.item import ItemNote, name_of
from deployments.contract.options import AddedOptions, Options
from deployments.contract.sections import SectionOwner
from deployments.entry_points import FEATURES, find_class, names

# By the options that a feature adds, what makes its note on the images of a request, or raises InvalidParameter.
OptionReaders = dict[type[AddedOptions], Callable[[Any, Options], ItemNote]]
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
    known = {name: value for name, value in parameters.items() if name in every().__struct_fields__}
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
    known = every().__struct_fields__
    if unknown := sorted(set(keywords).difference(known)):
        raise InvalidParameter(f"there is no parameter {unknown[0][:MOST_QUOTED]!r}; there are {sorted(known)}")
    return _convert(dict(keywords), strict)


def _convert(values: dict[str, Any], strict: bool = True) -> Options:
    if not values:
        return DEFAULT
    for name, value in values.items():
        # msgspec's error would quote all of it.
        if isinstance(value, str):
            check_text(name, value)
    try:
        read = msgspec.convert(values, every(), strict=strict)
    except UnicodeError as err:
        # JSON can hold half a character, which no text of UTF-8 can.
        raise InvalidParameter(f"the value of one of {sorted(values)} is no text") from err
    except msgspec.ValidationError as err:
        # As in "Expected `int` >= 1 - at `$.top_k`".
        problem, _, path = str(err).replace(" | null", "").partition(" - at ")
        name = path.strip("`").removeprefix("$.")
        raise InvalidParameter(f"{name}: {problem.lower()}; got {quoted(values.get(name))}") from err
    given = {name: value for name in values if (value := getattr(read, name)) is not None}
    parts = [(kind, given.keys() & set(kind.__struct_fields__)) for kind in added()]
    of_features = tuple(kind(**{name: given.pop(name) for name in own}) for kind, own in parts if own)
    return Options(**given, added=of_features)


@cache
def added() -> tuple[type[AddedOptions], ...]:
    """List the options that installed features add."""
    owners = [find_class(FEATURES, name, SectionOwner) for name in names(FEATURES)]
    return tuple(dict.fromkeys(each.options for each in owners if each.options is not None))


@cache
def every() -> type[msgspec.Struct]:
    """Make the model of all options that a client may send: the server's own, and the options that features add."""
    own = [field for field in msgspec.structs.fields(Options) if field.name != "added"]
    fields = [*own, *(field for kind in added() for field in msgspec.structs.fields(kind))]
    described = [(field.name, field.type, field.default) for field in fields]
    return msgspec.defstruct("Options", described, forbid_unknown_fields=True)


def noted(options: Options, readers: OptionReaders) -> dict[str, ItemNote]:
    """Make the notes on the images of a request that its features' options ask for, by name.

    Raises:
        InvalidParameter: an option is out of bounds, or the application does not read it.
    """
    notes = dict[str, ItemNote]()
    for each in options.added:
        if (read := readers.get(type(each))) is None:
            raise InvalidParameter(f"{each.__struct_fields__[0]}: nothing here reads it; {each.remedy}")
        note = read(each, options)
        notes[name_of(type(note))] = note
    return notes


def check_text(name: str, text: str) -> None:
    """Raise InvalidParameter for a text that is too long for an option, or for a request's id."""
    if len(text) > MOST_OF_TEXT:
        raise InvalidParameter(f"{name}: it has more than {MOST_OF_TEXT} characters; got {quoted(text)}")


def quoted(value: Any) -> str:
    """Return the beginning of the text of a caller's value, without writing all of it."""
    return BEGINNING.repr(value)[:MOST_QUOTED]


DEFAULT = Options()
