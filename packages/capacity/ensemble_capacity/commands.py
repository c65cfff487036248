"""The commands of this package."""

COMMANDS = {
    "Capacity": {
        "plan": ("ensemble_capacity.plan.__main__", "Predicts a configuration's rates and latencies."),
        "tune": ("ensemble_capacity.tune.__main__", "Chooses the settings that suit a p99, and writes them."),
        "load": ("ensemble_capacity.load.__main__", "Loads a server and reports its rate and latency."),
        "mirror": ("ensemble_capacity.mirror", "Sends recorded images to another server, and compares the answers."),
        "trace": ("ensemble_capacity.trace.__main__", "Draws a trace from a file."),
        "cost": ("ensemble_capacity.cost", "Computes what calls cost on machines paid by the hour."),
    },
}
