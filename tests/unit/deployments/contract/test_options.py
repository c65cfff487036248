from deployments.contract.options import OF_THE_ANSWER, Options, decisive


def test_an_option_enters_the_key_of_a_cache_unless_it_is_known_to_change_no_prediction():
    # Whoever adds an option has to say so here, too, or it only costs hits.
    assert {"top_k", "members", "timeout_ms", "cache", "timings"} == OF_THE_ANSWER
    assert decisive(Options()) == b""
    assert decisive(Options(top_k=3, members=True, timeout_ms=5, cache="no-cache", timings=True)) == b""
    assert decisive(Options(quality="full")) != b""
