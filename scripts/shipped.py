"""Finds what ships beside the packages: configurations and a sample picture, in a checkout or as a wheel puts them."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Where the wheel's data files go: `tool.setuptools.data-files`.
INSTALLED = Path(sys.prefix) / "share" / "ensemble-serving"


def shipped(name: str) -> Path:
    """A shipped file, such as `serve_config.yaml` or `configs/colocated.yaml`; it may not be there."""
    path = CHECKOUT / name
    return path if path.exists() else INSTALLED / name
