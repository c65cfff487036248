import pytest

from deployments.contract.caller import Caller
from deployments.contract.errors import Overloaded
from deployments.ingress.admission import Admission
from deployments.ingress.drain import Drain
from deployments.ingress.returns import LATE_S, LONGEST_KEY, Returns
from deployments.ingress.settings import IngressSettings


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def returns(clock):
    return Returns(clock)


def test_no_more_come_at_a_time_than_places_become_free(returns):
    # 80 a second: five of them in a tenth of a second, as a client can wait for whole seconds only.
    told = [returns.promise(str(number), 80, 30) for number in range(12)]
    assert told == [1] * 5 + [2] * 5 + [3] * 2
    assert returns.outstanding() == 12


def test_a_promise_holds_at_its_time_and_a_while_after(returns, clock):
    wait = returns.promise("a", 1, 30)
    assert not returns.is_due("a")
    assert not returns.is_due("b")
    assert not returns.is_due("")
    clock.now += wait
    assert returns.is_due("a")
    returns.keep("a")
    assert not returns.is_due("a")
    assert returns.outstanding() == 0


def test_who_does_not_come_is_forgotten(returns, clock):
    clock.now += returns.promise("a", 1, 30) + LATE_S + 0.01
    assert returns.outstanding() == 0
    assert not returns.is_due("a")


def test_who_is_told_another_time_leaves_the_first_to_others(returns):
    assert [returns.promise("a", 10, 30) for _ in range(40)] == [1] * 40
    assert returns.outstanding() == 1


def test_nothing_is_promised_that_is_too_long(returns):
    assert returns.promise("a", 80, 0) is None
    assert returns.promise("a" * (LONGEST_KEY + 1), 10, 30) is None
    assert returns.outstanding() == 0


def test_a_place_is_kept_for_who_was_told_to_come_again(returns, monkeypatch):
    monkeypatch.setattr(Drain, "pace", 1000.0)
    limits = IngressSettings(max_in_flight=8)
    admission = Admission(lambda: limits)
    admission.images = 8
    with pytest.raises(Overloaded) as refused:
        admission.check(by=Caller(key="mine"))
    assert refused.value.retry_after_s == 1
    monkeypatch.setattr(returns.__class__, "is_due", lambda self, key: key == "mine")
    admission.images = 7
    with pytest.raises(Overloaded):
        admission.check(by=Caller(key="another"))
    with admission.room(1, 10, 30.0, Caller(key="mine")):
        pass
    # Of eight places at most two, a third, are kept, however many are to come.
    for number in range(10):
        with pytest.raises(Overloaded):
            admission.check(9, by=Caller(key=str(number)))
    admission.images = 6
    with pytest.raises(Overloaded):
        admission.check()
    admission.images = 5
    admission.check()
