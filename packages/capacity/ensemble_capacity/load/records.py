"""The result of each request, and the figures of many: percentiles are of all requests, not of a sample."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A request that has no response: the connection failed or ended, or the time was over.
LOST, LATE = -1, -2
# Flags of a record, by the response of this application: its label is right; it lacks a member; fewer members were used
# because of the load; one of its images has failed.
RIGHT, DEGRADED, SHED, FAILED = 1, 2, 4, 8
FIELDS = [("due", "f8"), ("sent", "f8"), ("done", "f8"), ("status", "i2"), ("flags", "u1"), ("images", "u1")]
DTYPE = np.dtype(FIELDS)
# The same for one of them.
LAYOUT = "<dddhBB"

Records = NDArray[Any]
Floats = NDArray[np.float64]


def records(parts: Iterable[bytes]) -> Records:
    """Join the records that the senders reported, [N] of `DTYPE`, in the order in which the requests were due."""
    found = np.frombuffer(b"".join(parts), DTYPE)
    return found[np.argsort(found["due"], kind="stable")]


def ok(found: Records) -> NDArray[np.bool_]:
    """Tell which requests succeeded, [N]: 2xx over HTTP, OK over gRPC, and no image of a form has failed."""
    status = found["status"]
    return np.asarray(((status == 0) | ((status >= 200) & (status < 300))) & (found["flags"] & FAILED == 0))


def latency_ms(found: Records) -> Floats:
    """Calculate the time from when each request was due to its last byte, milliseconds, [N]."""
    return np.asarray((found["done"] - found["due"]) * 1000.0)


def late_ms(found: Records) -> Floats:
    """Calculate how much later than due each request left this machine, milliseconds, [N]."""
    return np.asarray((found["sent"] - found["due"]) * 1000.0)


def outcome(status: int) -> str:
    """Name a status."""
    if status in {LOST, LATE}:
        return "no connection" if status == LOST else "timeout"
    # Imported where results are reported: the processes that send over HTTP need no gRPC.
    from grpc import StatusCode

    return next((code.name for code in StatusCode if code.value[0] == status), str(status))


def outcomes(found: Records) -> dict[str, int]:
    """Count the requests by status, the most frequent first."""
    statuses = Counter(found["status"].tolist())
    return {outcome(status): count for status, count in statuses.most_common()}


def quantile(values: Floats, percent: float) -> float:
    """Choose the value that this share of all does not exceed; NaN of none, infinite if that value is."""
    if not len(values):
        return float("nan")
    return float(np.quantile(values, percent / 100, method="inverted_cdf"))


def between(found: Records, field: str, begin: float, end: float) -> Records:
    """Select the records whose time of this field is in [begin, end)."""
    return found[(found[field] >= begin) & (found[field] < end)]


def with_failures(found: Records) -> Floats:
    """Calculate latencies, milliseconds, where a request that failed takes for ever: for judging an objective."""
    return np.where(ok(found), latency_ms(found), np.inf)
