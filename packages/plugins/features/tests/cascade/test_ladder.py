"""Tolerances: which rung a request gets, what answers say of it, and when an audit withdraws it."""

import asyncio
import logging

import numpy as np
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from deployments.combiner import Combiner, CombinerSettings
from deployments.contract.errors import InvalidParameter
from deployments.contract.item import Item
from deployments.contract.options import Options
from deployments.pipeline.member_client import Member, QuorumSettings
from ensemble_features.cache.flow import Cache, prediction_options
from ensemble_features.cascade.audit import Audit
from ensemble_features.cascade.flow import LoadState
from ensemble_features.cascade.ladder import FEWEST, Accepted, Ladder, Rung, Tolerance
from ensemble_features.cascade.settings import CascadeSettings, RungSettings, UnderLoadSettings
from ensemble_serving.answer import Rung as Status
from packages.plugins.features.tests.cascade.test_cascade import OTHER, Combining, Says, asked, pixels, shed

RUNGS = (
    {"exit_at": (0.9,), "loss": 0.2, "differs": 0.05, "cost": 0.8},
    {"exit_at": (0.7,), "loss": 0.9, "differs": 0.05, "cost": 0.6},
)


def ladder():
    return Ladder([RungSettings(**rung) for rung in RUNGS], 1)


@pytest.mark.parametrize(
    ("sent", "rungs"),
    [
        ({"tolerance": 0.0}, (0, 0)),
        ({"tolerance": 0.19}, (0, 0)),
        ({"tolerance": 0.2}, (1, 1)),
        ({"tolerance": 0.5}, (1, 1)),
        ({"tolerance": 0.9}, (2, 2)),
        ({"tolerance": 100.0}, (2, 2)),
        ({"tolerance": 0.1, "tolerance_under_load": 0.3}, (0, 1)),
        ({"tolerance": 0.5, "tolerance_under_load": 0.9}, (1, 2)),
    ],
)
def test_a_tolerance_gets_the_cheapest_rung_whose_bound_is_within_it(sent, rungs):
    assert ladder().accept(Tolerance(**sent), Options()) == Accepted(*rungs)


@pytest.mark.parametrize(
    ("sent", "quality", "hint"),
    [
        ({"tolerance": 0.5, "tolerance_under_load": 0.2}, None, "0.2; send at least the tolerance, 0.5"),
        ({"tolerance_under_load": 0.2}, None, "needs tolerance"),
        ({"tolerance": 0.5}, "full", "send tolerance alone"),
    ],
)
def test_a_tolerance_that_cannot_be_meant_is_refused(sent, quality, hint):
    with pytest.raises(InvalidParameter, match=hint):
        ladder().accept(Tolerance(**sent), Options(quality=quality))


@pytest.mark.parametrize(
    "rungs",
    [
        RUNGS[::-1],
        [{**RUNGS[0], "exit_at": (0.9, 0.9)}],
        [RUNGS[0], {**RUNGS[1], "cost": 0.8}],
        [RUNGS[0], {**RUNGS[1], "loss": 0.1}],
        [{**RUNGS[0], "loss": float("nan")}],
        [{**RUNGS[0], "differs": 1.1}],
    ],
)
def test_rungs_go_from_the_safest_to_the_cheapest(rungs):
    CascadeSettings(order=("a", "b"), exit_at=(0.8,), ladder=RUNGS)
    with pytest.raises(ValidationError):
        CascadeSettings(order=("a", "b"), exit_at=(0.8,), ladder=rungs)


def climbing(*members, audited=False, under_load=None, **asking):
    """A cascade with a ladder, and the ladder."""
    names, rungs = [member.name for member in members], ladder()
    settings = CascadeSettings(order=names, exit_at=(0.8,), ladder=RUNGS)
    audit = Audit(names[:-1], settings.exit_at, 1.0, None, False) if audited else None
    loads = (LoadState(UnderLoadSettings(exit_at=(under_load,))),) * 2 if under_load is not None else ()
    flow = Combining(
        {member.name: Member(member, "small") for member in members},
        Combiner(CombinerSettings(), dict.fromkeys(names, 1.0)),
        QuorumSettings(**asking),
        settings,
        audit,
        loads,
        rungs,
    )
    return flow, rungs


def accepts(rung, under_load=None):
    return Item().with_note(Accepted(rung, rung if under_load is None else under_load))


def told(answer):
    found = [item.extras["rung"] for item in answer.items]
    return [each and each.number for each in found]


# The first member is sure of them by 0.95, 0.85, 0.75 and 0.65.
FIRST = {value: [sure, 1 - sure] for value, sure in enumerate((0.95, 0.85, 0.75, 0.65))}


async def test_a_batch_is_shared_by_callers_of_every_tolerance():
    a, b = Says("a", FIRST), Says("b", dict.fromkeys(FIRST, OTHER))
    flow, _ = climbing(a, b)
    items = [accepts(0), accepts(1), accepts(2), Item(), Item(options=Options(quality="full"))]
    for value, early in ((0, [0, 1, 1, 1, 0]), (1, [0, 0, 1, 1, 0]), (2, [0, 0, 1, 0, 0]), (3, [0] * 5)):
        a.seen.clear()
        answer = await flow(pixels(*[value] * 5, items=items))
        assert [len(each) == 1 for each in asked(answer)] == early
        assert (len(a.seen), told(answer)) == (1, [0, 1, 2, None, 0])
    status = answer.items[2].extras["rung"]
    assert (status, answer.items[0].extras["rung"]) == (Status(2, 0.9, 0.6), Status(0, 0, 1, True))


async def test_under_load_only_who_allows_it_gets_a_cheaper_rung():
    flow, _ = climbing(Says("a", FIRST), Says("b", dict.fromkeys(FIRST, OTHER)), under_load=0.6)
    items = [accepts(1), accepts(1, 2), accepts(0), Item()]
    assert [len(each) for each in asked(await flow(pixels(2, 2, 2, 2, items=items)))] == [2, 2, 2, 2]
    flow._loads[0].is_on = True
    answer = await flow(pixels(2, 2, 2, 2, items=items))
    assert [len(each) for each in asked(answer)] == [2, 1, 2, 1]
    assert (told(answer), shed(answer)) == ([1, 2, 0, None], [False, True, False, True])
    # One that exits at a low load as well is not called shed.
    assert shed(await flow(pixels(0, 0, 0, 0, items=items))) == [False, False, False, False]


async def test_the_audit_withdraws_the_rung_whose_bound_is_broken_and_no_other(caplog):
    a, b = Says("a", FIRST), Says("b", {**dict.fromkeys(FIRST, OTHER), 0: [1.0, 0.0]})
    flow, rungs = climbing(a, b, audited=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(FEWEST):
            # All members agree on the first image alone; the safer rung does not let the other exit.
            for number, value in ((1, 0), (2, 2)):
                answer = await flow(pixels(value, items=[accepts(number)]))
                await asyncio.gather(flow._audits._task)
    assert [rung.is_held for rung in rungs.rungs] == [True, True, False]
    assert caplog.text.count("rung 2 is withdrawn: all members answer 100.00 %") == 1
    assert (rungs.rungs[1].status().is_held, answer.items[0].extras["rung"].is_held) == (True, None)
    assert rungs.accept(Tolerance(tolerance=0.9), Options()) == Accepted(1, 1)
    assert flow._audit.report() == [("a", 0.8, 0, 0)]


@pytest.mark.parametrize(("exits", "is_held"), [(0.2, True), (1.0, False)])
def test_a_bound_is_of_all_images_of_a_rung_and_an_audit_of_its_exits(exits, is_held):
    rung = Rung((0.7,), 1, RungSettings(**{**RUNGS[0], "differs": 0.05}))
    for number in range(1000):
        rung.count(is_exit=number < 1000 * exits)
    for number in range(500):
        rung.note(number % 8 == 0)
    assert rung.is_held is is_held
    assert rung.differing()[1] == pytest.approx(exits / 8, rel=0.02)


async def test_of_an_answer_that_lacks_a_member_no_bound_is_held():
    flow, _ = climbing(Says("a", FIRST), Says("b", {}), quorum=1)
    answer = await flow(pixels(0, 0, items=[accepts(0), accepts(1)]))
    assert [bool(item.missing) for item in answer.items] == [True, False]
    assert [item.extras["rung"].is_held for item in answer.items] == [False, None]


def test_a_few_differences_by_chance_withdraw_nothing():
    rung = Rung((0.7,), 1, RungSettings(**RUNGS[0]))
    for number in range(FEWEST - 1):
        rung.count(is_exit=True)
        rung.note(number < 20)
    assert rung.status().is_held is None


def test_kept_predictions_are_of_a_rung_and_not_of_a_tolerance():
    cache = Cache(None, None, b"", 2, lambda _: None)
    keys = {cache._key(b"image", each) for each in (Item(), accepts(1), accepts(1), accepts(2))}
    assert len(keys) == 3
    options = Options(added=(Tolerance(tolerance=0.5),))
    assert prediction_options(options) == b""
    assert cache._key(b"image", replace(accepts(1), options=options)) in keys


def test_a_threshold_that_no_probability_reaches_lets_nothing_leave():
    assert all(np.float32(1) < each for each in ladder().rungs[0].exit_at)
