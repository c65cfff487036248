"""Sets a cascade's thresholds so that given shares of a workload's photographs are answered by its early stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deployments.repository.repository import Model
from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import predict
from scripts.evaluate.ensembles import Members


def thresholds(
    models: Sequence[Model], weights: Mapping[str, float], photographs: Dataset, shares: Sequence[float]
) -> list[float]:
    """What the largest probability of so many photographs reaches; between two of them, so that no rounding matters.

    Args:
        models: in the order in which the cascade asks them.
        weights: theirs, by name; 0 for one that is only a gate.
        photographs: what is asked.
        shares: of all photographs, those that stop at each stage but the last.

    Raises:
        ScriptError: there are not as many shares as stages, or the photographs are too alike to be told apart.
    """
    names = [model.name for model in models]
    if len(shares) != len(models) - 1:
        raise ScriptError(f"the cascade {' then '.join(names)} wants {len(models) - 1} shares by --stops")
    scores = dict(zip(names, predict(models, photographs), strict=True))
    said = Members(scores, np.zeros(len(photographs), np.int64), weights, dict.fromkeys(names, 0.0))
    _, stages = said.steps(names)
    left, exit_at = np.ones(len(photographs), bool), []
    for name, stage, share in zip(names, stages, shares, strict=False):
        sure = np.sort(stage[left])
        going_on = len(sure) - round(len(photographs) * share)
        if not 0 < going_on < len(sure) or sure[going_on - 1] == sure[going_on]:
            raise ScriptError(f"no threshold stops {share} of these {len(photographs)} photographs at {name!r}")
        exit_at.append(float((sure[going_on - 1] + sure[going_on]) / 2))
        left &= stage < exit_at[-1]
    return exit_at
