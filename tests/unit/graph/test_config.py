from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.contract.errors import ConfigurationError
from graph.config import EnsembleConfig, parse
from scripts import keys
from tests.conftest import ROOT

MEMBERS = [{"name": "a"}, {"name": "b"}]
CANARY = {"version": 2, "share": 0.1}
SHADOW = {"name": "s", "role": "shadow", "share": 0.1}
BESIDE = {"alerts.yaml", "compose.yaml", "prometheus.yaml"}
CONFIGS = [ROOT / "serve_config.yaml", *(f for f in (ROOT / "configs").glob("*.yaml") if f.name not in BESIDE)]


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({}, "members"),
        ({"members": []}, "members"),
        ({"members": [{}]}, "members.0.name"),
        ({"members": [{"name": "a", "threads": 0}]}, "members.0.threads"),
        ({"members": [{"name": "a", "thread": 1}]}, "members.0: unknown field 'thread'; did you mean 'threads'"),
        ({"members": [{"name": "a", "weight": -1}]}, "members.0.weight"),
        ({"members": [{"name": "a", "weight": 0}]}, "weight above 0"),
        ({"members": [{"name": "a"}, {"name": "a"}]}, "'a' is used twice"),
        ({"members": [{"name": "Ingress", "deployment": "mine"}]}, "'Ingress' is used twice"),
        ({"members": [{"name": "ensemble", "deployment": "mine"}]}, "no member can be called 'ensemble'"),
        ({"members": [{"name": "stats"}]}, "no member can be called 'stats'"),
        ({"members": [{"name": "a", "model": "../b"}]}, "members.0.model"),
        ({"members": MEMBERS, "transformer": {"size": [0, 3]}}, "transformer.size.0"),
        ({"members": [{"name": "a", "deployment": "Combiner"}]}, "'Combiner' is used twice"),
        ({"members": MEMBERS, "combiner": {"method": "median"}}, "combiner.method"),
        ({"members": MEMBERS, "combiner": {"weights": {"c": 1}}}, "no member 'c'"),
        ({"members": MEMBERS, "ingress": {"max_batch_size": 0}}, "ingress.max_batch_size"),
        ({"members": MEMBERS, "labeler": {"top_k": "many"}}, "labeler.top_k"),
        ({"members": MEMBERS, "transformer": {"crop_ratio": 1.5}}, "transformer.crop_ratio"),
        ({"members": MEMBERS, "placement": "inline"}, "placement"),
        ({"members": MEMBERS, "feedbak": {}}, "unknown field 'feedbak'; did you mean 'feedback'?"),
        ({"members": [{"name": "a", "canary": {"version": 2}}]}, "members.0.canary.share"),
        ({"members": [{"name": "a", "canary": {"share": 0.1}}]}, "members.0.canary.version"),
        ({"members": [{"name": "a", "canary": {"version": 2, "share": 1.1}}]}, "members.0.canary.share"),
        ({"members": [{"name": "a", "canary": {"version": "two", "share": 0.1}}]}, "a canary: version"),
        ({"members": [{"name": "a"}, {"name": "s", "role": "shadow"}]}, "a shadow needs one"),
        ({"members": [{"name": "a"}, {"name": "s", "share": 0.1}]}, "they belong to a shadow"),
        ({"members": [{"name": "s", "role": "shadow", "share": 0.1}]}, "none has a say"),
        ({"members": [*MEMBERS, {**SHADOW, "weight": 1}]}, "a shadow has no say"),
        ({"members": [*MEMBERS, {**SHADOW, "canary": CANARY}]}, "a shadow has no say"),
        ({"members": [*MEMBERS, {**SHADOW, "replaces": "c"}]}, "replaces: no member 'c'"),
        ({"members": [*MEMBERS, SHADOW], "ensemble": {"quorum": 3}}, "3 of 2 members"),
        ({"members": [*MEMBERS, SHADOW], "combiner": {"weights": {"s": 1}}}, "no member 's'"),
        ({"members": MEMBERS, "cache": {"per_key": True}}, "cache.per_key: there are no keys; set access.keys"),
        (
            {"members": [{"name": "a", "version_policy": "latest", "canary": CANARY}]},
            "every image would get its version",
        ),
        ({"members": [{"name": "a", "canary": CANARY}, {"name": "a-canary"}]}, "'a-canary' is used twice"),
    ],
)
def test_errors_name_the_field(args, field):
    with pytest.raises(ConfigurationError, match=field.replace(".", r"\.")):
        parse(args)


def test_every_field_has_a_description_and_a_default():
    def check(schema, path=""):
        for name, field in schema.model_fields.items():
            inner = getattr(field.annotation, "model_fields", None)
            if inner is not None:
                check(field.annotation, f"{path}{name}.")
            elif name not in {"placement", "method", "members"}:
                assert field.description, f"{path}{name}"

    check(EnsembleConfig)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_shipped_configurations_are_valid_for_serve_and_for_us(file: Path, tmp_path: Path):
    config = ServeDeploySchema.model_validate(yaml.safe_load(file.read_text()))
    [application] = config.applications
    if "access" in application.args:
        # It names a file that its user makes.
        keys.add(tmp_path / "keys", "client", None)
        application.args["access"]["keys"] = str(tmp_path / "keys")
    ensemble = parse(application.args)
    # A container's loopback is nobody's but its own.
    assert config.http_options.host == ("0.0.0.0" if file.name == "container.yaml" else "127.0.0.1")
    deployments = {deployment.name for deployment in application.deployments}
    expected = {"Ingress"} | {member.deployment_name for member in ensemble.members if member.placement == "separate"}
    for name, node in (
        ("JpegTransformer", ensemble.transformer),
        ("Combiner", ensemble.combiner),
        ("Labeler", ensemble.labeler),
    ):
        if node.placement == "separate":
            expected.add(name)
    assert deployments == expected


def test_the_default_fits_two_cores_and_scales_every_node():
    config = ServeDeploySchema.model_validate(yaml.safe_load((ROOT / "serve_config.yaml").read_text()))
    deployments = config.applications[0].deployments
    # Scaled up as far as it goes, with as many new replicas as old ones while they are rolled out.
    most = sum(d.ray_actor_options.num_cpus * d.autoscaling_config["max_replicas"] for d in deployments)
    assert {d.max_surge_percent for d in deployments} == {100}
    assert round(2 * most, 6) <= 2
    assert all(deployment.autoscaling_config["max_replicas"] > 1 for deployment in deployments)
    # A node has as many calls at a time as the ingress has passes under way: with a higher target it would never scale.
    passes = parse(config.applications[0].args).ingress.max_concurrent_batches
    targets = {d.name: d.autoscaling_config["target_ongoing_requests"] for d in deployments if d.name != "Ingress"}
    assert targets
    assert max(targets.values()) < passes


TWO = {"members": [{"name": "a"}, {"name": "b"}]}


def cascade(**more):
    return {**TWO, "ensemble": {"cascade": {"order": ["a", "b"], "exit_at": [0.7]}}, **more}


def test_a_cascade_names_each_member_once_and_has_a_threshold_for_each_but_the_last():
    parse(cascade())
    for order, exit_at, told in [
        (["a"], [], "at least 2"),
        (["a", "c"], [0.7], r"must name each member once; the members are \['a', 'b'\]"),
        (["a", "a"], [0.7], "must name each member once"),
        (["a", "b"], [], "exit_at needs 1 thresholds"),
        (["a", "b"], [1.2], r"exit_at\.0"),
    ]:
        with pytest.raises(ConfigurationError, match=told):
            parse({**TWO, "ensemble": {"cascade": {"order": order, "exit_at": exit_at}}})


def test_a_cascade_is_not_decided_by_votes():
    with pytest.raises(ConfigurationError, match="votes don't tell how sure the members are"):
        parse(cascade(combiner={"method": "majority_vote"}))


def test_a_gate_comes_first():
    parse(cascade(combiner={"weights": {"a": 0, "b": 1}}))
    with pytest.raises(ConfigurationError, match="'b' has weight 0, and no say beside 'a'"):
        parse(cascade(members=[{"name": "a"}, {"name": "b", "weight": 0}]))


def test_no_request_is_allowed_that_could_never_be_in_flight():
    parse({**TWO, "ingress": {"max_in_flight_bytes": 2**20, "max_request_bytes": 2**20}})
    with pytest.raises(ConfigurationError, match="more than the 1048576 of max_in_flight_bytes; lower it"):
        parse({**TWO, "ingress": {"max_in_flight_bytes": 2**20}})


def test_a_remote_member_may_have_a_canary_of_a_version_as_its_server_has_it():
    member = {
        "name": "r",
        "kind": "open_inference",
        "url": "http://127.0.0.1:1",
        "canary": {"version": "v3", "share": 0.1},
    }
    canary = parse({"members": [{**member, "version": "v2", "labels": ["x", "y"]}]}).nodes[1]
    assert (canary.name, canary.model, canary.version, canary.url) == ("r-canary", "r", "v3", member["url"])
