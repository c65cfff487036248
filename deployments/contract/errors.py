"""The errors of the server: the ones that a caller can get are in the client's package, `ensemble_serving.errors`."""

from ensemble_serving.errors import *  # noqa: F403

# The message of a failure whose cause is not for the caller.
INTERNAL_HINT = "the server failed on this request; its log has the cause"


class ConfigurationError(ValueError):
    """The configuration, or a model it names, can't be served; the message names the field and the remedy.

    `args` are the problems, each of which begins with the path of its field.
    """

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))
