"""The commands of this package."""

COMMANDS = {
    "Serve": {
        "doctor": ("ensemble_models.doctor.__main__", "Checks this machine, a configuration and its models."),
        "classify": ("ensemble_models.classify", "Classifies images with a running server."),
    },
    "Models": {
        "init": ("ensemble_models.init", "Writes the configuration that serves models of your own."),
        "prepare": ("ensemble_models.prepare.__main__", "Brings a model of any framework into the repository."),
        "quantize": ("ensemble_models.quantize", "Quantizes a model of the repository to int8."),
        "export": ("ensemble_models.export", "Writes a model with its preprocessing in fields that others read."),
        "labels": ("ensemble_models.labels", "Prints or renames the classes of a model."),
        "calibrate": ("ensemble_models.calibrate", "Fits a temperature that makes probabilities right."),
        "check": ("ensemble_models.check.__main__", "Measures a configuration, models or a server."),
        "tune-cascade": ("ensemble_models.tune_cascade", "Chooses a cascade's order and thresholds."),
        "shadow": ("ensemble_models.shadow", "Recommends whether to promote a running server's shadows."),
        "manifest": ("ensemble_models.manifest", "Writes the manifest of a repository that a website serves."),
    },
}
