import pytest

from graph.tracing import continue_trace, trace_id

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_valid_trace_goes_on():
    assert continue_trace(VALID) == VALID
    assert trace_id(VALID) == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "bad", [None, "", "x", VALID.upper(), VALID[:-1], "ff" + VALID[2:], VALID.replace("b7ad6b7169203331", "0" * 16)]
)
def test_anything_else_begins_a_new_one(bad):
    first, second = continue_trace(bad), continue_trace(bad)
    assert continue_trace(first) == first
    assert trace_id(first) != trace_id(second)
