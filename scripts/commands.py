"""The commands of the server's own distribution: in groups, each with its module and one line of help."""

COMMANDS = {
    "Serve": {
        "serve": ("scripts.serve.__main__", "Serves an application in the foreground until Ctrl-C."),
        "join": ("scripts.serve.join", "Joins this machine to the cluster of a server, and serves on it."),
        "deploy": ("scripts.serve.deploy", "Deploys a changed configuration to a running server."),
        "classify": ("scripts.classify", "Classifies images with a running server."),
        "doctor": ("scripts.doctor.__main__", "Checks this machine and a configuration."),
        "keys": ("scripts.keys", "Makes, lists, replaces and removes API keys."),
        "trace": ("scripts.trace.__main__", "Draws a trace from a file or from Jaeger."),
        "shadow": ("scripts.shadow.__main__", "Recommends whether to promote a running server's shadows."),
    },
    "Models": {
        "init": ("scripts.init", "Writes the configuration that serves models of your own."),
        "prepare": ("scripts.prepare.__main__", "Brings a model of any framework into the repository."),
        "quantize": ("scripts.prepare.quantize", "Quantizes a model of the repository to int8."),
        "labels": ("scripts.prepare.labels", "Prints or renames the classes of a model."),
        "calibrate": ("scripts.prepare.calibrate", "Fits a temperature that makes probabilities right."),
        "check": ("scripts.evaluate.__main__", "Measures a configuration, models or a server."),
        "tune-cascade": ("scripts.tune_cascade.__main__", "Chooses a cascade's order and thresholds."),
        "manifest": ("scripts.manifest", "Writes the manifest of a repository that a website serves."),
    },
}
