import numpy as np
import pytest

from deployments.contract.errors import InvalidParameter
from deployments.ingress.open_inference import tensors
from deployments.ingress.open_inference.tensors import Tensor


@pytest.mark.parametrize("datatype", [name for name in tensors.DTYPES if name != "BOOL"])
def test_there_and_back(datatype):
    array = np.arange(6).astype(tensors.DTYPES[datatype]).reshape(2, 3)
    tensor = Tensor("x", datatype, [2, 3], array)
    raw = tensors.from_raw("x", datatype, [2, 3], tensors.to_raw(tensor), 1)
    assert raw.data.dtype == array.dtype
    np.testing.assert_array_equal(raw.data, array)
    np.testing.assert_array_equal(tensors.from_list("x", datatype, [2, 3], tensors.to_list(tensor)).data, array)


def test_elements_are_taken_apart_only_as_far_as_they_may_be_used():
    raw = tensors.to_raw(Tensor("x", "BYTES", [5], [b"a", b"", b"ccc", b"d", b"e"]))
    assert tensors.from_raw("x", "BYTES", [5], raw, 64).data == [b"a", b"", b"ccc", b"d", b"e"]
    assert len(tensors.from_raw("x", "BYTES", [5], raw, 2).data) == 3


@pytest.mark.parametrize("shape", [[-1], [True], ["2"], [2.0], [2**40], [1] * 9, [10**9] * 8])
def test_what_is_no_shape_allocates_nothing(shape):
    with pytest.raises(InvalidParameter):
        tensors.from_raw("x", "FP32", shape, b"1234", 1)


def test_a_shape_of_no_elements_that_numpy_cannot_count_is_refused():
    with pytest.raises(InvalidParameter, match="array is too big"):
        tensors.from_raw("x", "FP32", [0, *[2**31 - 1] * 3], b"", 1)


@pytest.mark.parametrize(
    "data", [[1.5], ["1"], [-1], [256], [2**70], [None], [[1], [1, 2]], [True], [float("nan")], []]
)
def test_numbers_that_are_not_what_they_shall_be(data):
    with pytest.raises(InvalidParameter):
        tensors.from_list("x", "UINT8", [1], data)


def test_classes_are_told_by_value_index_and_label():
    tensor = Tensor("x", "FP32", [2, 3], np.array([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]], np.float32))
    told = tensors.classified(tensor, 2, ["a", "b", "c"])
    assert (told.datatype, told.shape) == ("BYTES", [2, 2])
    assert told.data == [b"0.500000:1:b", b"0.300000:2:c", b"0.900000:0:a", b"0.050000:1:b"]
    assert tensors.classified(tensor, 9, ["a", "b", "c"]).shape == [2, 3]
