"""The errors of models and of the places that they come from."""

import re

# Of OpenVINO's messages: the lines that say where in its own code an error arose, and what comes before the reason.
PLACE = re.compile(r"(Exception from |Check '.*' failed at )\S+:\d+:$|\[ *[A-Z_]+ *\]$")


class ModelError(ValueError):
    """A model is missing, damaged or no classifier, or can't be written."""


class SourceError(ModelError):
    """A model can't be fetched from its configured source."""


class Unreachable(SourceError):
    """The source did not answer, or not completely; versions that were fetched before can still be served."""


def reason(error: Exception) -> str:
    """Extract the reason from a message of OpenVINO, in one line; the whole message if nothing else is in it."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not PLACE.match(line)) or " ".join(lines)
