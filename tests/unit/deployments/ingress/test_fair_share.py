import pytest

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import Overloaded, OverShare
from deployments.ingress.admission import WANTS_S, AdmissionController, Shares
from deployments.ingress.headers import caller
from deployments.ingress.settings import IngressSettings

A, B = Caller("a"), Caller("b")


@pytest.fixture
def in_flight():
    return AdmissionController(IngressSettings(max_in_flight=10))


def held(in_flight, images, by):
    return in_flight.admitted(images, images, by)


def test_a_client_alone_has_all_the_held(in_flight):
    with held(in_flight, 9, A):
        in_flight.check(1, 0, A)


def test_two_clients_have_half_each_once_most_of_it_is_taken(in_flight):
    with held(in_flight, 4, A), held(in_flight, 1, B):
        with held(in_flight, 1, A), pytest.raises(OverShare, match="your share of 10 places"):
            in_flight.check(1, 0, A)
        with held(in_flight, 4, B):
            pass
    # Little is taken: nobody waits.
    with held(in_flight, 1, B):
        in_flight.check(4, 0, A)


def test_who_was_refused_counts_though_it_has_nothing(in_flight):
    with held(in_flight, 10, A):
        with pytest.raises(Overloaded):
            in_flight.check(1, 0, B)
        in_flight.images -= 4
        with pytest.raises(OverShare):
            in_flight.check(1, 0, A)
        in_flight.check(1, 0, B)
        in_flight.images += 4


def test_those_without_a_name_share_nothing(in_flight):
    with held(in_flight, 9, ANYONE):
        in_flight.check(1, 0, ANYONE)


def test_who_wanted_a_place_long_ago_is_forgotten():
    now = [0.0]
    shares = Shares(lambda: now[0])
    shares.want("b")
    assert shares.exceeds("a", 6, 10)
    now[0] += WANTS_S
    assert not shares.exceeds("a", 10, 10)


def test_a_share_is_one_place_at_least():
    shares = Shares()
    for number in range(20):
        shares.add(str(number), 1)
    assert not shares.exceeds("new", 1, 10)
    assert shares.exceeds("0", 1, 10)


@pytest.mark.parametrize(("fair_by", "client"), [("key", "mine"), ("address", "10.0.0.1"), ("nobody", "")])
def test_what_clients_are_told_apart_by(fair_by, client):
    headers = {"x-forwarded-for": "10.0.0.1"}
    assert caller(headers, "mine", fair_by) == Caller(client, name="mine", address="10.0.0.1")


def test_of_the_headers_only_what_something_goes_by_is_kept():
    headers = {"x-user": "me", "authorization": "secret"}
    assert caller(headers, "", "nobody", ("x-user", "x-tenant")).headers == {"x-user": "me"}
    assert caller(headers, "", "nobody").headers == {}
