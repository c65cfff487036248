"""The number of files that a server may have open: a connection is one."""

from __future__ import annotations

import resource

# More than the connections that HAProxy takes, and few enough for programs that look at each number.
WANTED = 65_536


def raise_file_limit() -> None:
    """Raise the limit of this process, and of those that it starts, as far as the system lets it and it is useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
