"""The import path of Ray's workers: the folder that is served from comes last, so that it hides no installed code."""

import sys
from pathlib import Path

from deployments.folder_permissions import changeable_by_others

# Where this project's packages are; an editable install finds them by no folder of the import path.
PACKAGES = Path(__file__).resolve().parents[2]


def append_working_directory() -> None:
    """Let this worker import a user's own code from its working directory, after everything that is installed.

    It imports none from a directory that another user could write to.
    """
    for folder in (PACKAGES, Path.cwd()):
        if str(folder) not in sys.path and (folder == PACKAGES or changeable_by_others(folder) is None):
            sys.path.append(str(folder))
