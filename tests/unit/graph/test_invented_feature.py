"""A feature that nobody has: it takes part by all four shapes, and no module of the core knows it."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from pydantic import Field

from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from deployments.contract.sections import Fault, Section
from deployments.contract.settings import Schema
from deployments.entry_points import FEATURES
from deployments.ingress.protocol import Report, Served
from deployments.pipeline.pipeline import Interceptor
from deployments.reconfigure import LiveSettings
from graph.composition import build_graph, ensemble
from graph.config import EnsembleConfig, parse
from graph.feature import Feature, wanted
from graph.rules import check_user_config
from graph.signature import EnsembleSignature
from tests.unit.deployments.test_entry_points import read_anew


class Pace(Schema):
    """The live settings."""

    beats: int = Field(1, ge=1, description="beats")


class Tempo(Section):
    """A field of each member."""

    at = "members"
    tempo: int | None = Field(None, ge=1, description="beats of the member")

    def rules(self, owner, config, agreed):
        """Find a tempo that is too fast for one member."""
        if len(config.members) == 1 and self.tempo > 200:
            yield Fault("tempo: one member can't be as fast", "lower it", is_refused=True)
        elif self.tempo > 100:
            yield Fault("tempo: nobody dances as fast", "lower it")

    def live(self, owner):
        """Return the settings of the member."""
        return {"paces": {owner.name: Pace(beats=self.tempo)}}


class Own(Section):
    """The entry in `features`."""

    loud: bool = Field(False, description="whether it is heard")


class Drum(Feature, Interceptor):
    """Marks each image, replaces members and what calls them, serves a path, and has settings of its own."""

    sections = (Tempo, Own)

    def __init__(self, config, agreed, site):
        self.interceptor, self.seen, self.settings = self, [], site.settings
        paces = {each.name: each.of(Tempo).tempo for each in config.members}
        self.paces = {name: SimpleNamespace(settings=Pace(beats=each)) for name, each in paces.items() if each}
        self.reports = {"drum": Report(int, lambda: len(self.seen))}

    def on_part(self, batch, positions, part):
        """Intercept a batch."""
        self.seen += positions
        return part

    def wrap(self, stage, node):
        """Wrap stages."""

        async def wrapped(batch):
            items = tuple(replace(each, extras={**each.extras, stage.kind: stage.name}) for each in batch.items)
            return await node(Batch(batch.payload, items))

        return wrapped if (stage.kind == "node" and stage.name == "a") or stage.kind == "predictions" else node

    def serve(self, service):
        """Serve a method of the handle, read a header, and let settings change."""
        return Served(handles={"drum": self.on_part}, headers=["x-drum"], live={"paces": self.paces})


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A plugin with the feature."""
    module = ModuleType("own_drum")
    module.Drum = Drum
    monkeypatch.setitem(sys.modules, "own_drum", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    (package := tmp_path / "drums-1.dist-info").mkdir()
    (package / "METADATA").write_text("Name: drums\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{FEATURES}]\ndrum = own_drum:Drum\n")
    with read_anew():
        yield


MEMBERS = [{"name": "a", "tempo": 90}, {"name": "b"}]


def test_its_sections_are_a_part_of_the_schema(installed):
    config = parse({"members": MEMBERS, "drum": {"loud": True}})
    assert config.members[0].of(Tempo).tempo == 90
    assert config.features["drum"].loud
    for args, why in (
        ({"members": [{"name": "a", "temp": 90}]}, "unknown field 'temp'; did you mean 'tempo'"),
        ({"members": [{"name": "a", "tempo": 0}]}, r"members\.0\.tempo: Input should be greater than"),
        ({"members": [{"name": "a", "tempo": 201}]}, r"members\.a\.tempo: one member can't be as fast; lower it"),
        ({"members": MEMBERS, "drum": {"laud": True}}, "unknown field 'laud'; did you mean 'loud'"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            parse(args)
    schema = EnsembleConfig.model_json_schema()
    assert "tempo" in schema["$defs"]["OpenVino"]["properties"]
    assert schema["$defs"]["Own"]["properties"].keys() == {"loud"}
    [fault] = parse({"members": [{"name": "a", "tempo": 101}]}).faults()
    assert str(fault) == "members.a.tempo: nobody dances as fast; lower it"


def test_without_it_its_fields_are_unknown():
    for args in ({"members": MEMBERS}, {"members": [{"name": "a"}], "drum": {}}):
        with pytest.raises(ConfigurationError, match=r"unknown field '(tempo|drum)'"):
            parse(args)


def test_its_live_settings_are_checked_before_the_start_and_change(installed):
    config = parse({"members": MEMBERS})

    def check(**change):
        check_user_config("Ingress", change, config)

    check(paces={"a": {"beats": 5}})
    for wrong in ({"paces": {"a": {"beats": 0}}}, {"paces": {"b": {"beats": 5}}}, {"pace": {}}):
        with pytest.raises(ConfigurationError):
            check(**wrong)


async def test_it_intercepts_batches_wraps_stages_and_serves(installed):
    config = parse({"members": MEMBERS, "drum": {"loud": True}})
    agreed = EnsembleSignature(("x", "y"), {}, {}, ("a", "b"), {})
    found = [each for each in wanted(config) if each.feature is Drum]
    assert [each.settings for each in found] == [Own(loud=True)]
    extras = []

    def member(name):
        async def node(batch):
            extras.extend((name, dict(each.extras)) for each in batch.items)
            return Batch(np.full((len(batch.items), 2), 0.5, np.float32), batch.items)

        return node

    async def same(batch):
        return Batch({"": batch.payload}, batch.items) if isinstance(batch.payload, list) else batch

    async def combine(batch):
        return Batch(next(iter(batch.payload.values())), batch.items)

    async def label(batch):
        return Batch(["cat"] * len(batch.items), batch.items)

    nodes = {"JpegTransformer": same, "a": member("a"), "b": member("b"), "Combiner": combine, "Labeler": label}

    def compose(placed, features):
        return ensemble({"a": "", "b": ""}, config.ensemble, placed, features)

    built = build_graph(config, agreed, found, compose, {}, nodes, "app", "one", {})
    await built.graph(Batch([b"1", b"2"], (Item(queued_ns=1), Item(queued_ns=1))))
    [drum] = built.features
    assert drum.reports["drum"].read() == 2
    assert extras == [("a", {"predictions": "", "node": "a"})] * 2 + [("b", {"predictions": ""})] * 2
    assert drum.serve(None).headers == ["x-drum"]
    live = LiveSettings(drum.serve(None).live)
    live.apply({"paces": {"a": {"beats": 7}}})
    assert drum.paces["a"].settings == Pace(beats=7)
