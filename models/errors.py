"""What can be wrong with a model."""


class ModelError(ValueError):
    """A model is missing, damaged or no classifier, or can't be written; the message says which."""


class SourceError(ModelError):
    """Models can't be had from where the configuration says; the message says why and what to do."""


class Unreachable(SourceError):
    """The source did not answer, or not to the end; what was fetched before may be served on."""
