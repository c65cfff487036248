import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.errors import InvalidParameter
from deployments.ingress.open_inference.tensors import split


def packed(elements):
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_elements_are_split_as_they_were_packed(elements):
    assert split(packed(elements), 64) == elements


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_are_split_whole_or_refused(raw, most):
    try:
        elements = split(raw, most)
    except InvalidParameter:
        return
    assert len(elements) <= most + 1
    assert raw.startswith(packed(elements))
    assert len(elements) > most or packed(elements) == raw


@pytest.mark.parametrize("raw", [b"\1", b"\1\0\0\0", b"\xff\xff\xff\xffx", packed([b"x"]) + b"\0"])
def test_what_ends_within_an_element_is_refused(raw):
    with pytest.raises(InvalidParameter, match="ends within an element"):
        split(raw, 64)
