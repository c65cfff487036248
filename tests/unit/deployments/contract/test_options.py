from deployments.contract.options import PRESENTATION, Options
from ensemble_features.cache.flow import prediction_options


def test_an_option_enters_the_key_of_a_cache_unless_it_is_known_to_change_no_prediction():
    # Whoever adds an option has to say so here, too, or it only costs hits.
    # What an added option decides is in a note of its feature.
    assert {"top_k", "members", "timeout_ms", "cache", "timings", "receipt", "priority", "added"} == PRESENTATION
    assert prediction_options(Options()) == b""
    assert (
        prediction_options(Options(top_k=3, members=True, timeout_ms=5, cache="no-cache", timings=True, receipt=True))
        == b""
    )
    assert prediction_options(Options(quality="full")) != b""
