"""The parts of a critical path are its nodes and hops, and sum to the duration of the root."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from ensemble_capacity.trace.spans import RecordedSpan
from lab.experiments.hops import path


def span(identifier, parent, name, start, end):
    return RecordedSpan("t", identifier, parent, name, "service", start, end, {}, [], {}, False)


def below(spans):
    found = defaultdict(list)
    for each in spans:
        found[each.parent_id].append(each)
    return found


CLIENT = span("c", None, "client", 0, 100)
HERE = [
    span("r", "c", "classify", 10, 95),
    span("b", "r", "batch", 20, 90),
    span("q", "r", "queue", 12, 20),
    span("d", "r", "decode", 21, 30),
    span("p", "r", "predict resnet", 33, 50),
    span("o", "r", "predict densenet", 31, 60),
    span("k", "r", "combine", 64, 66),
    span("l", "r", "label", 71, 72),
]


def test_each_node_and_hop_has_its_time_and_of_members_side_by_side_the_last_one_counts():
    parts = list(path(CLIENT, below(HERE)))
    assert parts[::-1] == [
        ("client to classify", 10),
        ("classify to queue", 2),
        ("queue", 8),
        ("queue to decode", 1),
        ("decode", 9),
        ("decode to member", 1),
        ("member", 29),
        ("member to combine", 4),
        ("combine", 2),
        ("combine to label", 5),
        ("label", 1),
        ("label to classify", 23),
        ("classify to client", 5),
    ]
    assert sum(duration for _, duration in parts) == CLIENT.duration_us


def test_a_member_on_another_server_has_the_parts_of_that_server():
    # The other server ends its span when it has sent the answer: later than it is there.
    other = [span("x", "o", "classify", 35, 62), span("y", "x", "queue", 36, 37), span("z", "x", "predict m", 39, 50)]
    parts = list(path(CLIENT, below(HERE + other)))
    inside = [(name, duration) for name, duration in parts[::-1] if "its server's" in name]
    assert inside == [
        ("member to its server's classify", 4),
        ("its server's classify to its server's queue", 1),
        ("its server's queue", 1),
        ("its server's queue to its server's member", 2),
        ("its server's member", 11),
        ("its server's member to its server's classify", 10),
        ("its server's classify to member", 0),
    ]
    assert sum(duration for _, duration in parts) == CLIENT.duration_us


moments = st.tuples(st.integers(-10, 120), st.integers(-10, 120)).map(sorted)


@given(st.lists(st.tuples(moments, st.integers(0, 30)), max_size=12))
def test_the_parts_of_any_spans_sum_to_the_duration_of_the_root(drawn):
    names = ["c"]
    spans = []
    for number, ((start, end), parent) in enumerate(drawn):
        spans.append(span(str(number), names[parent % len(names)], f"predict {number}", start, end))
        names.append(str(number))
    durations = [duration for _, duration in path(CLIENT, below(spans))]
    assert sum(durations) == CLIENT.duration_us
    assert min(durations) >= 0
