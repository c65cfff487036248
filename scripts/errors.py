"""The mistakes that a command's user can make, and how they are reported: in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from deployments.contract.errors import ConfigurationError, EnsembleError
from deployments.repository.errors import ModelError


class ScriptError(ValueError):
    """A command can't do its work; the message gives the reason and a remedy."""


class DatasetError(ScriptError):
    """The path holds no labelled images."""


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn the user's mistakes into `error: ...` on stderr and exit status 1; bugs keep their traceback."""
    try:
        yield
    except (ScriptError, ModelError, ConfigurationError, EnsembleError, OSError) as err:
        raise SystemExit("error: " + " ".join(str(err).split())) from err
