"""A way to combine members: for each image the probabilities of the surest one."""

import numpy as np
from numpy.typing import NDArray


def surest(members: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Choose among members' probabilities, float32 [members,N,C]; returns float32 [N,C]."""
    best = (members.max(axis=2) * (weights > 0)[:, None]).argmax(axis=0)
    return members[best, np.arange(members.shape[1])]
