"""The files behind this process's standard output and error, in which libraries write a line per damaged image."""

import os
import stat

STANDARD = (1, 2)
MOST_BYTES = 256 * 1024


def keep_small() -> None:
    """Empty each of the files that has become large: the last lines, which tell of a crash, are always there.

    libjpeg, libpng and libtiff write by themselves, and a redirection of their stream would lose what a crash says.
    """
    for descriptor in STANDARD:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_size > MOST_BYTES:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"(This file had become large, so its first lines were removed.)\n")
