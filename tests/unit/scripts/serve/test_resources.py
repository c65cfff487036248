import pytest

from deployments.contract.errors import ConfigurationError
from scripts.serve.resources import GIB, Resources, available, check_placement, reserved

TWO = Resources(2, 4 * GIB)


def serving(*deployments):
    return {"applications": [{"deployments": [*deployments]}]}


def entry(name, more, **options):
    return {"name": name, "ray_actor_options": options, **more}


def test_what_replicas_reserve_is_added_up():
    found = reserved(
        serving(
            entry("a", {"autoscaling_config": {"min_replicas": 2}}, num_cpus=0.5),
            entry("b", {"num_replicas": 3}, num_cpus=1, memory=100),
            # The application's own options, and Serve's default.
            {"name": "c"},
            entry("d", {}, memory=1),
            entry("e", {"autoscaling_config": {"min_replicas": 0}}, num_cpus=9),
            # Of the three, this machine has one.
            entry("f", {"num_replicas": 3, "max_replicas_per_node": 1}, num_cpus=0.5),
        )
    )
    assert found == Resources(1 + 3 + 0.1 + 1 + 0.5, 301)


@pytest.mark.parametrize(
    ("deployments", "told"),
    [
        (
            [entry("a", {}, num_cpus=50)],
            r"^applications\.0\.deployments\.0\.ray_actor_options: a replica of a reserves 50",
        ),
        ([entry("a", {}, memory=1e12)], "reserves 1 CPUs and 931.3 GiB, and Ray has 2 CPUs and 4.0 GiB; lower it$"),
        ([entry("a", {"num_replicas": 3}, num_cpus=1)], "^applications: all replicas reserve 3 CPUs .* at the start"),
        ([entry("a", {}, num_cpus=1), entry("b", {}, num_cpus=1.1)], "reserve 2.1 CPUs"),
        ([entry("a", {"num_replicas": 5}, num_cpus=0.1, memory=GIB)], "and 5.0 GiB at the start"),
    ],
)
def test_what_can_not_be_placed_is_refused(deployments, told):
    with pytest.raises(ConfigurationError, match=told):
        check_placement(serving(*deployments), TWO)


def test_what_can_be_placed_is_not():
    check_placement(serving(entry("a", {"num_replicas": 20}, num_cpus=0.1), {"name": "b"}), Resources(2.1, GIB))
    # A replica that starts by scaling up may wait for its place.
    check_placement(serving(entry("a", {"autoscaling_config": {"max_replicas": 9}}, num_cpus=1)), TWO)
    assert available().num_cpus >= 1
