"""The model repository that commands read and write unless another is named: the user's own."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

VARIABLE = "ENSEMBLE_MODELS"


def default_repository() -> Path:
    """Return the folder that the environment variable ENSEMBLE_MODELS names, else `models` in the working directory."""
    return Path(os.environ.get(VARIABLE) or "models")


def add_repository(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--repository`."""
    parser.add_argument(
        "--repository",
        type=Path,
        default=default_repository(),
        metavar="FOLDER",
        help=f"of the models, <name>/<version>/ (default: ${VARIABLE}, else ./models)",
    )
