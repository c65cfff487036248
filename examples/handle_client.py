"""Classifies images with a Python handle: for code that runs on the same Ray cluster.

python examples/handle_client.py image.jpg ...

First run `source` on the file that `make serve` names: it has the variables by which Ray finds the cluster.
"""

import os
import sys
from pathlib import Path

import ray
from ray import serve

from graph.errors import EnsembleError


def main(paths: list[str]) -> None:
    """Send all images at once, and print the answers in order."""
    ray.init(logging_level="ERROR", log_to_driver=False)
    handle = serve.get_app_handle("ensemble")
    answers = [handle.classify.remote(Path(path).read_bytes(), top_k=2, members=True) for path in paths]
    for path, answer in zip(paths, answers, strict=True):
        try:
            classification = answer.result(timeout_s=60)
        except EnsembleError as error:
            print(f"{path}: {error.code}: {error.message}")
            continue
        members = ", ".join(f"{name}: {member.label}" for name, member in classification.members.items())
        print(f"{path}: {classification.label} ({classification.probability:.3f}); {members}")


if __name__ == "__main__":
    if not sys.argv[1:] or "RAY_ADDRESS" not in os.environ:
        sys.exit(__doc__)
    main(sys.argv[1:])
