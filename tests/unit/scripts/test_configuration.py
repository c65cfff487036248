import re
import subprocess
import sys

import openvino as ov
import pytest
import yaml

from deployments.contract.errors import ConfigurationError
from packages.models.tests.tiny import add
from scripts import serve_schema
from scripts.configuration import check, check_arguments, check_import_paths, doubts, load, read
from tests.networks import brightness, store
from tests.server.server import config


def test_a_relative_repository_is_the_folders_of_the_file(tmp_path, repository):
    for given, expected in (("models", str(tmp_path / "models")), ("s3://a/b", "s3://a/b"), ("/x", "/x")):
        (tmp_path / "my.yaml").write_text(yaml.safe_dump(config(given, "inline")))
        assert load(tmp_path / "my.yaml").value["applications"][0]["args"]["model_repository"] == expected
    with pytest.raises(
        ConfigurationError, match=f"there is no folder {tmp_path}/models, in which model 'one' would be"
    ):
        check(config(tmp_path / "models", "inline")["applications"][0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "not valid YAML"),
        ("- a list", "is a mapping"),
        ("", "is a mapping"),
        ("applications: {name: a}", "line 1: applications: Input should be a list"),
        ("applications: 5", "line 1: applications: Input should be a list"),
        ("\nhttp_options: {host: }\napplications: []", r"line 2: http_options\.host: .* valid string \(got None\)"),
        ("a: &a {b: 1}\nc:\n  <<: *a\n  b: 2\n  b: 3", r"line 5: c\.b: 'b' stands twice in one mapping; merge both"),
        ("a: &a [*a]", "line 1: a.0: it contains itself"),
        ("a:\n  1: b", "line 2: a.1: a key is a text; write '1'"),
        ("? [b]\n: c", "line 1: .*a key is a text, and no list"),
        ("a: !!set {b}", "line 1: a: a tag; remove it"),
        ("a: !!python/name:os.system", "line 1: a: readers of YAML differ"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, text, told):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        read(tmp_path / "bad.yaml")


def test_a_picture_is_no_configuration(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ConfigurationError, match="not valid YAML"):
        read(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Ingres", "no deployment is called 'Ingres'; did you mean 'Ingress'"),
        ("one", "'one' has `placement: inline`, so it runs in the process of Ingress"),
    ],
)
def test_entries_of_deployments_must_belong_to_one(repository, name, told):
    application = config(repository, "inline")["applications"][0]
    check(application)
    application["deployments"].append({"name": name})
    with pytest.raises(ConfigurationError, match=told):
        check(application)


@pytest.mark.parametrize("place", ["name", "route_prefix", "deployments.0.name"])
def test_a_name_that_ray_can_not_take_is_refused(repository, place):
    content = config(repository, "inline")
    *above, field = place.split(".")
    holder = content["applications"][0]["deployments"][0] if above else content["applications"][0]
    holder[field] = f"{holder[field]}kätzchen"
    with pytest.raises(ConfigurationError, match=rf"^applications.0.{place}: '.*kätzchen' is not ASCII, and Ray"):
        serve_schema.check(content)


INGRESS = {"name": "Ingress"}


@pytest.mark.parametrize(
    ("change", "entries", "told"),
    [
        ({"aplications": []}, [], "^aplications: unknown field; did you mean 'applications'"),
        ({"x-common": {"port": 1}}, [], "^x-common: unknown field$"),
        ({"http_options": {"PORT": 1}}, [], r"^http_options\.PORT: unknown field; did you mean 'port'"),
        ({"http_options": {"port": True}}, [], r"^http_options\.port: Input should be a valid integer \(got true\)"),
        ({"http_options": {"port": "8000"}}, [], r"valid integer \(got '8000'\); write 8000 without quotes"),
        ({"http_options": {"host": 5}}, [], r"^http_options\.host: .* valid string \(got 5\); write '5'"),
        ({"grpc_options": {"quick": 1}}, [], r"^grpc_options\.quick: unknown field$"),
        ({"grpc_options": {"enable_reflection": "true"}}, [], r"\(got 'true'\); write true without quotes"),
        ({"proxy_location": "Nowhere"}, [], "^proxy_location: Input should be 'Disabled', 'HeadOnly' or 'EveryNode'"),
        ({}, [INGRESS, INGRESS], r"^applications\.0\.deployments\.1\.name: 'Ingress' has an entry before"),
        ({}, [{"num_replicas": 1}], r"^applications\.0\.deployments\.0\.name: Field required$"),
        ({"applications": [{"import_path": "graph.app:build", "route_prefix": "x"}]}, None, r"route_prefix: it begins"),
        ({}, ["Ingress"], r"^applications\.0\.deployments\.0: Input should be a mapping \(got 'Ingress'\)"),
        ({"applications": {"name": "a"}}, None, r"^applications: Input should be a list"),
        ({}, {"name": "Ingress"}, r"^applications\.0\.deployments: Input should be a list"),
        ({}, [{**INGRESS, "num_replica": 1}], r"\.num_replica: unknown field; did you mean 'num_replicas'"),
        ({}, [{**INGRESS, "num_replicas": [2]}], r"deployments\.0: `num_replicas` must be an int"),
        ({}, [{**INGRESS, "num_replicas": True}], r"num_replicas: Input should be a valid integer \(got true\)"),
        ({}, [{**INGRESS, "autoscaling_config": True}], r"\.autoscaling_config: Input should be a mapping"),
        (
            {},
            [{**INGRESS, "autoscaling_config": {"min_replicas": 7, "max_replicas": 2}}],
            r"^applications\.0\.deployments\.0\.autoscaling_config: max_replicas \(2\) must be greater than or equal",
        ),
        (
            {},
            [{**INGRESS, "autoscaling_config": {"upscale_delay_s": "resnet"}}],
            r"autoscaling_config\.upscale_delay_s: Input should be a valid number \(got 'resnet'\)$",
        ),
        ({}, [{**INGRESS, "autoscaling_config": {"MIN_REPLICAS": 1}}], "did you mean 'min_replicas'"),
        (
            {},
            [{**INGRESS, "autoscaling_config": {"policy": {"policy_function": "nowhere.policies:Policy"}}}],
            "autoscaling_config.* Serve can't use it: No module named 'nowhere'",
        ),
        ({}, [{**INGRESS, "ray_actor_options": {"num_cpus": "much"}}], r"ray_actor_options\.num_cpus: .* valid number"),
        ({}, [{**INGRESS, "ray_actor_options": {"cpus": 1}}], r"ray_actor_options\.cpus: unknown field; did you mean"),
        ({}, [{**INGRESS, "max_replicas_per_node": 0}], r"deployments\.0\..*max_replicas_per_node"),
        ({}, [{**INGRESS, "ray_actor_options": {"resources": {"tpu": "two"}}}], r"deployments\.0\."),
    ],
)
def test_what_serve_refuses_or_ignores_is_named_before_it_runs(repository, change, entries, told):
    content = {**config(repository, "inline"), **change}
    serve_schema.check(config(repository, "inline"))
    if entries is not None:
        content["applications"][0]["deployments"] = entries
    with pytest.raises(ConfigurationError) as caught:
        serve_schema.check(content)
    assert re.search(told, caught.value.args[0]), caught.value.args


def test_every_problem_has_its_line(tmp_path, repository):
    file = tmp_path / "my.yaml"
    content = config(repository, "inline")
    content["applications"][0]["args"] |= {"ingress": {"max_batch_size": True}, "labeler": {"top_k": "5"}}
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigurationError) as caught:
        read(file)
    lines = file.read_text().splitlines()
    found = dict(re.fullmatch(r"line (\d+): ([\w.]+): .*", each).groups() for each in caught.value.args)
    assert {lines[int(line) - 1].strip() for line in found} == {"max_batch_size: true", "top_k: '5'"}
    assert {*found.values()} == {"ingress.max_batch_size", "labeler.top_k"}


def test_what_should_be_a_list_is_called_so(repository):
    application = config(repository, "inline")["applications"][0]
    application["args"]["members"] = None
    with pytest.raises(ConfigurationError, match="members: Input should be a list"):
        check(application)


def test_an_import_path_is_that_of_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "own_build_of_mine.py").write_text("raise SystemError('nobody runs it here')")
    for path in ("graph.app:build", "own_build_of_mine:build", "own_build_of_mine.build", "examples.own_build:build"):
        check_import_paths({"applications": [{"import_path": path}]})
    check_import_paths({"applications": [{"import_path": "far.off:build", "runtime_env": {"working_dir": "s3://a"}}]})
    for path, told in (
        ("graph.ap:build", r"there is no 'graph.ap:build'; did you mean 'graph.app:build'\?"),
        ("graph.app:biuld", r"there is no 'graph.app:biuld'; did you mean 'graph.app:build'\?"),
        ("own_build_of_yours:build", "looked for in the working directory"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            check_import_paths({"applications": [{"import_path": path}]})


def test_nothing_is_imported_where_others_can_write_and_that_is_said(tmp_path, monkeypatch):
    (tmp_path / "own_build_of_theirs.py").touch()
    tmp_path.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises(ConfigurationError, match=f"working directory, but not where other users can change {tmp_path}"):
        check_import_paths({"applications": [{"import_path": "own_build_of_theirs:build"}]})
    assert str(tmp_path) not in sys.path
    tmp_path.chmod(0o700)
    check_import_paths({"applications": [{"import_path": "own_build_of_theirs:build"}]})


def test_what_is_assumed_of_a_member_is_doubted(tmp_path, repository):
    assert not list(doubts(*check(config(repository, "inline")["applications"][0])))
    store(tmp_path, "one", brightness())
    add(tmp_path, "two", brightness(), "FP32", labels=None)
    (tmp_path / "three" / "1").mkdir(parents=True)
    ov.save_model(brightness(), tmp_path / "three" / "1" / "model.xml")
    application = config(tmp_path, "inline", members=("one", "two", "three"))["applications"][0]
    found = list(doubts(*check(application)))
    assert "the rest is assumed: 32x32" in found[0]
    assert [doubt.partition(":")[0] for doubt in found] == [
        "the model of three was not prepared",
        "two names no classes",
        "three names no classes",
    ]


def test_thresholds_belong_to_the_versions_that_chose_them(tmp_path):
    """After `quantize` and `calibrate` 94 % of the images left a cascade instead of 81 %, and nothing said so."""
    for name in ("one", "two"):
        store(tmp_path, name, brightness())
    application = config(tmp_path, "inline", members=("one", "two"))["applications"][0]
    cascade = {"order": ["one", "two"], "exit_at": [0.9], "versions": {"one": 1, "two": 1}}
    application["args"]["ensemble"] = {"cascade": cascade}
    assert not list(doubts(*check(application)))
    store(tmp_path, "two", brightness(), version=2)
    [doubt] = doubts(*check(application))
    assert "chosen for two 1, and version 2 is served" in doubt
    assert f"`ensemble tune-cascade --data IMAGES --order one two --repository {tmp_path}`" in doubt
    cascade["versions"]["three"] = 1
    with pytest.raises(ConfigurationError, match="'three' is not in the order"):
        check(application)


def test_a_server_that_starts_waits_for_the_arguments_alone(tmp_path):
    steps = """
import sys, yaml
from scripts.configuration import Checks
from deployments.contract.errors import ConfigurationError
for config in yaml.safe_load_all(sys.stdin):
    checks, step = Checks(config), "arguments"
    try:
        checks.wait_for_arguments()
        step = "models"
        checks.wait()
    except ConfigurationError as err:
        print(step, err)
"""
    misnamed = config(tmp_path / "no", "inline")
    misnamed["applications"][0]["deployments"].append({"name": "Ingres"})
    given = yaml.safe_dump_all([misnamed, config(tmp_path / "no", "inline")])
    done = subprocess.run([sys.executable, "-c", steps], input=given, capture_output=True, text=True)
    arguments, models = done.stdout.splitlines()
    assert arguments.startswith("arguments deployments: no deployment is called 'Ingres'")
    assert models.startswith(f"models members: 'one': there is no folder {tmp_path}/no")


def test_replicas_that_would_share_named_cpus_are_refused(repository):
    application = config(repository, "inline")["applications"][0]
    application["args"]["cpus"] = [0]
    check(application)
    for most, scaling in (
        (2, {"autoscaling_config": {"min_replicas": 1, "max_replicas": 2}}),
        (3, {"num_replicas": 3}),
        (100, {"num_replicas": "auto"}),
    ):
        application["deployments"][0] = {"name": "Ingress", **scaling}
        with pytest.raises(ConfigurationError, match=f"may have {most} replicas"):
            check(application)
    application["args"]["cpus"] = "auto"
    check(application)


def test_replicas_of_a_canary_would_share_named_cpus_too(repository):
    application = config(repository, "separate")["applications"][0]
    member = application["args"]["members"][0]
    member |= {"placement": "separate", "cpus": [0], "version": 1, "canary": {"version": 2, "share": 0.1}}
    name = f"{member.get('deployment', member['name'])}-canary"
    application["deployments"] = [{"name": name, "num_replicas": 2}]
    with pytest.raises(ConfigurationError, match=f"'{name}' may have 2 replicas"):
        check_arguments(application)
