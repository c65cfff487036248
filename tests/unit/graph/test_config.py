from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.contract.errors import ConfigurationError
from graph.config import EnsembleConfig, parse
from tests.conftest import ROOT

MEMBERS = [{"name": "a"}, {"name": "b"}]
BESIDE = {"alerts.yaml", "compose.yaml", "prometheus.yaml"}
CONFIGS = [ROOT / "serve_config.yaml", *(f for f in (ROOT / "configs").glob("*.yaml") if f.name not in BESIDE)]


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({}, "members"),
        ({"members": []}, "members"),
        ({"members": [{}]}, "members.0.name"),
        ({"members": [{"name": "a", "threads": 0}]}, "members.0.threads"),
        ({"members": [{"name": "a", "thread": 1}]}, "members.0.thread"),
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
def test_shipped_configurations_are_valid_for_serve_and_for_us(file: Path):
    config = ServeDeploySchema.model_validate(yaml.safe_load(file.read_text()))
    [application] = config.applications
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
