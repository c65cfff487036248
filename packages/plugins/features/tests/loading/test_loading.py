import asyncio

import numpy as np
import pytest

from deployments.contract.batch import Work
from deployments.contract.errors import (
    ConfigurationError,
    DeadlineExceeded,
    Forbidden,
    InvalidParameter,
    NotFound,
    NotReady,
    Unloaded,
)
from deployments.ingress.ingress import Ingress
from deployments.ingress.settings import IngressSettings
from deployments.ingress.single_member import MemberModelInfo, SingleMemberGraph
from ensemble_features.loading.feature import Change, ModelControl
from ensemble_features.loading.flow import LoadingSettings, UnloadGate
from tests.batches import batch, errors
from tests.unit.deployments.ingress.test_ingress import OBSERVER, Graph


class Member:
    """Answers by a version, which is another one from the call on that a change names."""

    def __init__(self):
        self.version, self.calls = 1, 0

    async def __call__(self, batch):
        work = Work("predict", batch)
        self.calls += 1
        scores = np.full((len(work.payload), 2), 0.5, np.float32)
        return work.done(scores, lambda _: {"versions": {"one": self.version}})


class Served:
    """Two members of which one may be unloaded, a third that can't be, and the changes that were asked for."""

    def __init__(self, operators="anyone", **settings):
        self.member, self.changes = Member(), []
        self.versions = dict.fromkeys(("one", "two", "remote"), "1")
        self.left_out = {}
        self.gates = UnloadGate({"one", "two"}, 1, self.versions, {}, self.left_out)
        gated = {name: self.gates.before(name, node) for name, node in (("one", self.member), ("two", Member()))}
        gated["remote"] = Member()
        ensemble = Ingress.of_images(Graph(), IngressSettings(**settings), 2, OBSERVER)
        offer = MemberModelInfo((2, 3), "1", "openvino")
        self.members = {
            name: (ensemble.of_pixels(SingleMemberGraph(node, offer.size, "ab")), offer) for name, node in gated.items()
        }
        self.control = ModelControl(operators, self.gates, self.change)
        self.control.members = self.members

    async def change(self, change):
        """As Serve would tell it to this replica."""
        self.changes.append(change)
        if change.unload:
            self.gates.settings = LoadingSettings(unloaded=(change.name,))
            return None
        asyncio.get_running_loop().call_later(0.05, setattr, self.member, "version", 2)
        self.gates.settings = LoadingSettings(loaded={change.name: 2})
        return 2


async def test_a_member_that_is_unloaded_is_not_asked_and_each_image_says_so():
    member = Member()
    gates = UnloadGate({"one"}, 1, {}, {}, {})
    gated = {"one": gates.before("one", member)}
    pixels = np.zeros((2, 2, 3, 3), np.uint8)
    assert not errors(await gated["one"](batch(pixels)))
    gates.settings = LoadingSettings(unloaded=("one",))
    failed = await gated["one"](batch(pixels))
    assert [type(item.error) for item in failed.items] == [Unloaded, Unloaded]
    assert (failed.live, len(failed.payload), member.calls) == ([], 0, 1)
    gates.settings = LoadingSettings()
    assert not errors(await gated["one"](batch(pixels)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"unloaded": ("three",)}, r"'three' can't be loaded; these members can: \['one', 'two'\]"),
        ({"loaded": {"three": 1}}, "'three' can't be loaded"),
        ({"unloaded": ("one", "two")}, "the quorum needs it"),
    ],
)
def test_settings_that_the_quorum_or_the_names_forbid_are_refused(settings, told):
    with pytest.raises(ConfigurationError, match=told):
        UnloadGate({"one", "two"}, 1, {}, {}, {}).check(LoadingSettings(**settings))


async def test_a_load_is_done_when_the_member_has_answered_by_the_version():
    served = Served()
    await served.control.load("one", {"version": 2})
    assert served.changes == [Change("one", False, 2)]
    assert served.member.version == 2
    assert served.versions == {"one": "2", "two": "1", "remote": "1"}


async def test_a_version_that_nobody_answers_by_is_told():
    served = Served(timeout_ms=20)
    with pytest.raises(DeadlineExceeded, match="'two' has not answered by version 2 within 20 ms; the log says why"):
        await served.control.load("two", {})


async def test_what_is_unloaded_can_be_loaded_again():
    served = Served()
    await served.control.unload("one", {})
    assert served.gates.settings.unloaded == ("one",)
    [outcome] = await served.members["one"][0].classify([bytes(18)])
    assert isinstance(outcome, Unloaded)
    await served.control.load("one", {})
    assert not served.gates.settings.unloaded


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("ensemble", InvalidParameter, "'ensemble' is made of its members"),
        ("nothing", NotFound, r"no member 'nothing'; the members are \['one', 'remote', 'two'\]"),
        ("remote", InvalidParameter, "'remote' can't be loaded; it is on another server"),
    ],
)
async def test_what_is_no_member_of_ours_is_refused(name, error, told):
    served = Served()
    for call in (served.control.load, served.control.unload):
        with pytest.raises(error, match=told):
            await call(name, {})
    assert not served.changes


async def test_one_change_at_a_time():
    served = Served()
    going = asyncio.Event()

    async def slow(_):
        await going.wait()
        served.gates.settings = LoadingSettings(loaded={"one": 1})
        return 1

    served.control._deploy = slow
    first = asyncio.ensure_future(served.control.load("one", {}))
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="another member is being loaded"):
        await served.control.unload("two", {})
    going.set()
    await first


def test_who_may():
    Served("anyone").control.check_permitted("")
    some = Served(("ops",)).control
    some.check_permitted("ops")
    for name in ("", "mobile"):
        with pytest.raises(Forbidden, match=r"access\.operators"):
            some.check_permitted(name)
