import pytest

from deployments.contract.caller import ANYONE, Caller, caller
from deployments.contract.errors import Overloaded, OverShare
from deployments.ingress.admission import Admission
from deployments.ingress.settings import IngressSettings
from deployments.ingress.shares import WANTS_S, Shares

A, B = Caller("a"), Caller("b")


@pytest.fixture
def admission():
    limits = IngressSettings(max_in_flight=10)
    return Admission(lambda: limits)


def room(admission, images, by):
    return admission.room(images, images, 30.0, by)


def test_a_client_alone_has_all_the_room(admission):
    with room(admission, 9, A):
        admission.check(1, 0, A)


def test_two_clients_have_half_each_once_most_of_it_is_taken(admission):
    with room(admission, 4, A), room(admission, 1, B):
        with room(admission, 1, A), pytest.raises(OverShare, match="your share of 10 places"):
            admission.check(1, 0, A)
        with room(admission, 4, B):
            pass
    # Little is taken: nobody waits.
    with room(admission, 1, B):
        admission.check(4, 0, A)


def test_who_was_refused_counts_though_it_has_nothing(admission):
    with room(admission, 10, A):
        with pytest.raises(Overloaded):
            admission.check(1, 0, B)
        admission.images -= 4
        with pytest.raises(OverShare):
            admission.check(1, 0, A)
        admission.check(1, 0, B)
        admission.images += 4


def test_those_without_a_name_share_nothing(admission):
    with room(admission, 9, ANYONE):
        admission.check(1, 0, ANYONE)


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
    assert caller(headers, "mine", fair_by) == Caller(client, name="mine")


def test_of_the_headers_only_what_something_goes_by_is_kept():
    headers = {"x-user": "me", "authorization": "secret"}
    assert caller(headers, "", "nobody", ("x-user", "x-tenant")).headers == {"x-user": "me"}
    assert caller(headers, "", "nobody").headers == {}
