"""Networks that fail while they run."""

import numpy as np
import pytest

from ensemble_models.prediction import runner
from tests.networks import fails_from


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_network_that_fails_gives_no_old_scores(threads):
    run = runner(fails_from(240), INFERENCE_NUM_THREADS=threads)
    good, bad = (np.full((2, 32, 32, 3), level, np.uint8) for level in (10, 250))
    assert run(good).shape == (2, 3)
    with pytest.raises(RuntimeError, match="seq_lengths"):
        run(bad)
    np.testing.assert_allclose(run(good), [[10, 20, 30]] * 2, rtol=0.1)
