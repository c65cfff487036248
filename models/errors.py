"""What can be wrong with a model."""


class ModelError(ValueError):
    """A model is missing, damaged or no classifier, or can't be written; the message says which."""
