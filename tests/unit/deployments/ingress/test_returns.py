import pytest

from deployments.contract.errors import Overloaded
from deployments.ingress.admission import Admission
from deployments.ingress.drain import Drain
from deployments.ingress.returns import CAUTION, LATE_S, LONGEST_KEY, Returns
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


def test_each_has_a_time_of_its_own_as_places_become_free(returns):
    told = [returns.promise(key, 10, 30) for key in "abc"]
    assert told == pytest.approx([0.1 * CAUTION, 0.2 * CAUTION, 0.3 * CAUTION])
    assert returns.outstanding() == 3


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


def test_nothing_is_promised_that_is_too_long(returns):
    assert returns.promise("a", 0.01, 30) is None
    assert returns.promise("a" * (LONGEST_KEY + 1), 10, 30) is None
    assert returns.outstanding() == 0


def test_a_place_is_kept_for_who_was_told_to_come_again(monkeypatch):
    monkeypatch.setattr(Drain, "pace", 1000.0)
    limits = IngressSettings(max_in_flight=8)
    admission = Admission(lambda: limits)
    admission.images = 8
    with pytest.raises(Overloaded) as refused:
        admission.check(key="mine")
    assert refused.value.retry_after_s == pytest.approx(CAUTION / 1000, rel=0.1)
    admission.images = 7
    with pytest.raises(Overloaded):
        admission.check(key="another")
    with admission.room(1, 10, 30.0, "mine"):
        pass
    # Of eight places at most two are kept, however many are to come.
    for number in range(10):
        with pytest.raises(Overloaded):
            admission.check(9, key=str(number))
    admission.images = 6
    with pytest.raises(Overloaded):
        admission.check()
    admission.images = 5
    admission.check()
