"""What Ray's workers import: the folder that is served from comes last, so that nothing there hides other code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Where this project's packages are; an editable install finds them by no folder of the import path.
PACKAGES = Path(__file__).resolve().parents[2]


def append_working_directory() -> None:
    """Let this worker import a user's own code from its working directory, after everything that is installed."""
    for folder in (str(PACKAGES), os.getcwd()):
        if folder not in sys.path:
            sys.path.append(folder)
