"""A share that was counted, with its 95 % interval."""

import math

# Quantile of the normal distribution for 95 %.
Z = 1.96
# Low, mean, high.
Interval = tuple[float, float, float]


def wilson(count: int, total: int) -> Interval:
    """Return the share with its 95 % interval, from 0 to 1 if the total is 0.

    Source: Wilson, 1927, https://doi.org/10.1080/01621459.1927.10502953
    """
    if total == 0:
        return 0.0, 0.0, 1.0
    mean = count / total
    scale = 1 + Z * Z / total
    middle = mean + Z * Z / (2 * total)
    half = Z * math.sqrt(mean * (1 - mean) / total + Z * Z / (4 * total * total))
    return max(0.0, (middle - half) / scale), mean, min(1.0, (middle + half) / scale)
