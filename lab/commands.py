"""The commands of the laboratory."""

COMMANDS = {
    "Training": {"train": ("lab.training.__main__", "Trains a member: a CIFAR-size network.")},
    "Laboratory": {
        "benchmark": ("lab.benchmark.__main__", "Compares this application with other servers."),
        "experiments": ("lab.experiments.__main__", "Repeats an experiment of docs/experiments."),
        "faults": ("lab.faults.__main__", "Injects faults into running servers under load."),
        "pictures": ("lab.pictures", "Draws the pictures of the documentation."),
        "reference": ("lab.reference.__main__", "Writes docs/reference from the code."),
        "docs": ("lab.docs", "Builds the documentation as a website, and checks its links."),
    },
}
