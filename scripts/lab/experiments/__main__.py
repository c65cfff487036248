"""Makes an experiment of docs/experiments.md here.

    ensemble experiments autoscaling --help  # late requests and replica-seconds of a p99 target, by policy
    ensemble experiments cascade --help      # accuracy against throughput: members, precisions, thresholds
    ensemble experiments overload --help     # more images than all members can answer, second by second
    ensemble experiments payloads --help     # what a request costs, by the form of its images
    ensemble experiments planning --help     # how exact the predictions of `ensemble plan` are

Each has options of its own, prints a table, and writes it as JSON, as Markdown and as a picture.
"""

from __future__ import annotations

import argparse
import sys

from scripts.lab.experiments import autoscaling, cascade, overload, payloads, planning

EXPERIMENTS = {
    "autoscaling": autoscaling.main,
    "cascade": cascade.main,
    "overload": overload.main,
    "payloads": payloads.main,
    "planning": planning.main,
}


def main() -> None:
    """Make the experiment that is named."""
    if experiment := EXPERIMENTS.get("".join(sys.argv[1:2])):
        experiment(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.parse_args()


if __name__ == "__main__":
    main()
