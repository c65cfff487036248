from deployments.rpc.cluster import PROBE_EVERY, Locality

BATCHES = 50 * PROBE_EVERY


def stays(locality, here_s, elsewhere_s, ahead=1):
    """The share of batches that stay, where a batch takes so long on an idle replica here, and so long elsewhere."""
    stayed = 0
    for _ in range(BATCHES):
        if locality.stays(ahead):
            stayed += 1
            locality.took_here(here_s * (ahead + 1), ahead)
        else:
            locality.took_elsewhere(elsewhere_s)
    return stayed / BATCHES


def test_a_batch_stays_where_a_replica_is_idle():
    locality = Locality()
    locality.took_here(1.0, 0)
    locality.took_elsewhere(0.001)
    assert all(locality.stays(0) for _ in range(BATCHES))


def test_what_would_wait_here_goes_to_a_machine_that_is_idle():
    locality = Locality()
    locality.took_here(0.020, 0)
    assert stays(locality, here_s=0.020, elsewhere_s=0.023) < 0.01


def test_where_all_are_loaded_alike_all_but_the_probes_stay():
    locality = Locality()
    locality.took_here(0.020, 0)
    assert 1 - 1.1 / PROBE_EVERY < stays(locality, here_s=0.020, elsewhere_s=0.043) < 1


def test_a_machine_that_becomes_idle_or_busy_is_found():
    locality = Locality()
    locality.took_here(0.020, 0)
    assert stays(locality, 0.020, 0.060) > 0.95
    assert stays(locality, 0.020, 0.023) < 0.8
    assert stays(locality, 0.020, 0.060) > 0.95


def test_one_slow_batch_elsewhere_outweighs_quick_ones_before_it():
    locality = Locality()
    locality.took_here(0.020, 0)
    for seconds in (0.010, 0.010, 0.060):
        locality.took_elsewhere(seconds)
    # The first one probes.
    assert [locality.stays(1) for _ in range(PROBE_EVERY)] == [False] + [True] * (PROBE_EVERY - 1)


def test_a_machine_that_fails_gets_no_more_than_the_probes():
    locality = Locality()
    locality.took_here(0.020, 0)
    locality.took_elsewhere(0.001)
    assert stays(locality, 0.020, float("inf")) > 0.97


def test_several_ahead_make_it_worth_to_go_elsewhere():
    locality = Locality()
    locality.took_here(0.020, 0)
    assert stays(locality, 0.020, 0.050, ahead=1) > 0.95
    assert stays(locality, 0.020, 0.050, ahead=3) < 0.5
