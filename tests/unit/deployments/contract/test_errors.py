import grpc
import pytest

import graph.errors
from deployments.contract import errors
from deployments.contract.errors import EnsembleError, error_by_code, errors_by_code


def test_every_error_has_a_code_of_its_own_and_both_statuses():
    assert len(errors_by_code()) >= 10
    for code, kind in errors_by_code().items():
        assert kind.code == code
        assert 400 <= kind.http_status < 600
        assert grpc.StatusCode[kind.grpc_status] is not grpc.StatusCode.OK
        assert (kind.http_status < 500) == (not kind.is_fault)


def test_an_error_comes_back_by_its_code():
    for kind in errors_by_code().values():
        for after_s in (None, 1.5):
            again = error_by_code(**kind("why", retry_after_s=after_s).to_dict())
            assert (type(again), again.message, again.retry_after_s) == (kind, "why", after_s)
    assert type(error_by_code("of another version", "why")) is EnsembleError


def test_a_long_message_is_cut():
    assert len(EnsembleError("x" * 10_000).message) < 600


def test_the_public_names_are_all_of_them():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(graph.errors.__all__) == defined
    with pytest.raises(EnsembleError):
        raise graph.errors.Overloaded("x")
