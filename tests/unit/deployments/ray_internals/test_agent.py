"""Ray's agent adds up the processes of a machine: what replicas leave behind is no series."""

import inspect

import pytest
from prometheus_client import REGISTRY
from ray._private import services
from ray._private.telemetry.open_telemetry_metric_recorder import OpenTelemetryMetricRecorder
from ray.dashboard.modules.reporter import reporter_agent

from deployments.contract.names import MOST_VALUES, OTHER
from deployments.ray_internals import agent, fork_client


def exported(name, *tags):
    """The samples of Ray's metric, by the values of these tags, or of its process."""
    samples = [each for family in REGISTRY.collect() for each in family.samples if each.name == name]
    tags = tags or ("deployment", "WorkerId", "replica")
    return {tuple(each.labels[tag] for tag in tags if tag in each.labels): each.value for each in samples}


@pytest.fixture(scope="module")
def recorder():
    """Ray's own, in its agent's class."""
    return agent.make_recorder(OpenTelemetryMetricRecorder)()


def tags(worker):
    return {"deployment": "Ingress", "WorkerId": worker, "replica": worker, "handle": worker, "actor_id": worker}


def test_counters_and_histograms_are_of_the_machine(recorder):
    recorder.register_counter_metric("test_agent_counter", "")
    recorder.register_histogram_metric("test_agent_seconds", "", [1.0, 2.0])
    for worker in map(str, range(20)):
        recorder.set_metric_value("test_agent_counter", tags(worker), 2.0)
        point = {"tags": tags(worker), "bucket_counts": [1, 2, 0]}
        recorder.record_histogram_aggregated_batch("test_agent_seconds", [point])
    assert exported("ray_test_agent_counter_total") == {("Ingress",): 40}
    assert exported("ray_test_agent_seconds_count") == {("Ingress",): 60}


def test_a_gauge_is_of_its_process(recorder):
    recorder.register_gauge_metric("test_agent_gauge", "")
    for worker in ("a", "b"):
        recorder.set_metric_value("test_agent_gauge", tags(worker), 3.0)
    # A second scrape right after the first is as complete.
    for _ in range(2):
        assert exported("ray_test_agent_gauge") == {("Ingress", "a", "a"): 3, ("Ingress", "b", "b"): 3}


def test_many_values_of_a_tag_stay_few_whichever_process_reports_them(recorder):
    """Twenty replicas, one after the other, of a model with a thousand classes: each reports a hundred of its own."""
    recorder.register_counter_metric("ensemble_test_predictions", "")
    for replica in range(20):
        for label in range(50 * replica, 50 * replica + 100):
            recorder.set_metric_value("ensemble_test_predictions", {**tags(str(replica)), "label": str(label)}, 1.0)
    counts = exported("ray_ensemble_test_predictions_total", "label")
    assert len(counts) == MOST_VALUES + 1
    assert sum(counts.values()) == 2000
    assert (counts["99",], counts[OTHER,]) == (2, 2000 - 150)


def test_rays_agent_is_where_it_is_replaced():
    assert agent.script().is_file()
    assert str(agent.script()).endswith(fork_client.AGENT)
    assert 'os.path.join(RAY_PATH, "dashboard", "agent.py")' in inspect.getsource(services.start_raylet)


def test_ray_makes_its_recorder_by_the_name_that_is_replaced():
    assert reporter_agent.OpenTelemetryMetricRecorder is OpenTelemetryMetricRecorder
    assert "OpenTelemetryMetricRecorder" in reporter_agent.ReporterAgent.__init__.__code__.co_names
