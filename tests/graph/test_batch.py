import pickle
import time

import numpy as np

from graph.batch import Batch, Request
from graph.errors import DeadlineExceeded, InvalidImage


def test_failing_takes_rows_out_of_arrays_and_lists():
    requests = [Request("") for _ in range(4)]
    error = InvalidImage("no")
    for payload in (np.arange(4), [0, 1, 2, 3]):
        batch = Batch(payload, requests).fail({1: error}).fail({3: error})
        assert list(batch.payload) == [0, 2]
        assert batch.live == [0, 2]
        assert batch.errors == {1: error, 3: error}


def test_the_first_error_of_a_request_stays():
    first, second = InvalidImage("first"), InvalidImage("second")
    batch = Batch([1], [Request("")]).fail({0: first}).fail({0: second})
    assert batch.errors == {0: first}


def test_two_holders_of_a_batch_do_not_see_each_others_failures():
    batch = Batch([1, 2], [Request(""), Request("")])
    batch.fail({0: InvalidImage("no")})
    assert batch.live == [0, 1]


def test_expired_requests_leave():
    now = time.time()
    batch = Batch([1, 2, 3], [Request("", now - 1), Request("", now + 60), Request("")]).unexpired()
    assert batch.payload == [2, 3]
    assert isinstance(batch.errors[0], DeadlineExceeded)


def test_a_batch_travels():
    batch = Batch(np.ones((1, 2, 2, 3), np.uint8), [Request("t"), Request("u")], {1: InvalidImage("no")})
    copy = pickle.loads(pickle.dumps(batch))
    np.testing.assert_array_equal(copy.payload, batch.payload)
    assert type(copy.errors[1]) is InvalidImage
    assert copy.errors[1].to_dict() == {"code": "invalid_image", "message": "no"}
    assert copy.requests == batch.requests
