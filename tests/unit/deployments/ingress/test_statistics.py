from deployments.contract.batch import Batch
from deployments.contract.errors import InvalidImage
from deployments.contract.item import Item, Note, Step
from deployments.ingress.statistics import Statistics
from deployments.observe.observer import ImageTrace


def step(name, start, end):
    return Step(Note(name, start, end, {}, ("host", 1)))


def test_each_image_has_the_times_of_its_batch():
    steps = (step("decode", 100, 110), step("predict", 112, 150), step("label", 155, 158))
    items = (Item(steps=steps), Item(error=InvalidImage("no image")), Item(steps=steps))
    statistics = Statistics()
    image_traces = [ImageTrace(None, queued, 10) for queued in (50, 60, 90)]
    statistics.batch(image_traces, 100, 160, Batch(["a", "b"], items))
    reported = statistics.reported("ensemble", "1")
    assert (reported.inference_count, reported.execution_count) == (2, 1)
    counted = reported.inference_stats
    assert (counted.success.count, counted.success.ns) == (2, 110 + 70)
    assert (counted.fail.count, counted.fail.ns) == (1, 100)
    assert (counted.queue.count, counted.queue.ns) == (3, 50 + 40 + 10)
    [batch] = reported.batch_stats
    assert batch.batch_size == 3
    parts = [batch.compute_input.ns, batch.compute_infer.ns, batch.compute_output.ns]
    assert parts == [10, 47, 3]
    assert [counted.compute_input.ns, counted.compute_infer.ns, counted.compute_output.ns] == [3 * ns for ns in parts]


def test_a_batch_that_failed_is_no_execution():
    statistics = Statistics()
    statistics.batch([ImageTrace(None, 0, 1)], 1, 2, Batch([], (Item(error=InvalidImage("no image")),)))
    reported = statistics.reported("ensemble", "1")
    assert (reported.inference_count, reported.execution_count, reported.inference_stats.fail.count) == (0, 0, 1)
