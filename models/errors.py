"""The errors of models and of the places that they come from."""


class ModelError(ValueError):
    """A model is missing, damaged or no classifier, or can't be written."""


class SourceError(ModelError):
    """A model can't be fetched from its configured source."""


class Unreachable(SourceError):
    """The source did not answer, or not completely; versions that were fetched before can still be served."""
