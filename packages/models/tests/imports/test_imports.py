"""What other servers serve is served here by one command: the same answers, and a line for each field."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import yaml
from PIL import Image

from deployments.repository.errors import ModelError
from deployments.repository.repository import versions
from ensemble_models import init
from ensemble_models.dataset import Dataset, indices
from ensemble_models.imports import protobuf_text
from ensemble_models.imports.read import read
from ensemble_models.prediction import measured_predictions, of_configuration
from ensemble_models.statistics import top1
from packages.models.tests.imports import shapes
from packages.models.tests.kinds import make
from packages.models.tests.kinds.make import COLOURS, TWO
from packages.models.tests.tiny import call
from scripts import configuration
from scripts.errors import ScriptError

# 7 classes of 72 pictures: 504.
COUNT = 72


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make.write(tmp_path_factory.mktemp("images") / "images", make.pictures(COLOURS, COUNT))


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Images that say how models take pixels; others judge."""
    return make.write(tmp_path_factory.mktemp("few") / "few", make.pictures(COLOURS))


@pytest.fixture
def serve(tmp_path, few, monkeypatch):
    """Imports what `--from` names, and gives the arguments of the configuration."""
    monkeypatch.chdir(tmp_path)

    def serve(origin, *flags):
        call(init.main, "my.yaml", "--from", origin, "--data", few, *flags)
        return yaml.safe_load(Path("my.yaml").read_text())["applications"][0]["args"]

    return serve


def by_openvino(source, way, dataset):
    """What the given file answers to pixels that are normalized as its clients did."""
    network = ov.Core().read_model(source)
    pixels = (
        np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content, _ in dataset.read()]) / 255
    )
    pixels = pixels[..., :: 1 if way.order == "RGB" else -1]
    pixels = ((pixels - way.mean) / way.std).astype(np.float32)
    pixels = pixels if network.input(0).get_partial_shape()[3] == 3 else pixels.transpose(0, 3, 1, 2)
    scores = ov.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(pixels)[0]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", shapes.SHAPES, ids=lambda shape: shape.__name__)
def test_a_shape_is_imported_and_answers_as_its_files(shape, serve, tmp_path, images):
    origin = shape(tmp_path / "theirs")
    found = {each.name: each for each in read(origin).members}
    args = serve(origin)
    assert [each["name"] for each in args["members"]] == list(found)
    for each in args["members"]:
        each["inference_precision"] = "f32"
    dataset = Dataset.open(images)
    assert len(dataset) > 500
    candidates = of_configuration(*configuration.check({"args": args}))
    answers = measured_predictions(candidates, dataset)[0]
    served = {each.name: answer for each, answer in zip(candidates, answers, strict=True) if each.is_served}
    assert served.keys() == found.keys()
    for name, answered in served.items():
        way = shapes.BLUE_FIRST if "--mean" in found[name].flags else shapes.IMAGENET
        theirs = by_openvino(found[name].source, way, dataset)
        assert (answered.argmax(1) == theirs.argmax(1)).all()
        assert np.abs(answered - theirs).max() <= 1e-3
        assert top1(answered, indices(dataset, sorted(COLOURS), name)) > 90


def members(args):
    return {each["name"]: each for each in args["members"]}


def test_triton_s_batches_queue_and_execution_become_settings(serve, tmp_path, capsys):
    args = serve(shapes.triton_one(tmp_path))
    assert args["ingress"] == {"max_batch_size": 8, "batch_wait_ms": 0.5, "timeout_ms": 2000, "max_in_flight": 64}
    assert args["cache"] == {}
    assert members(args)["tint"] == {"name": "tint", "version": 3, "threads": 1, "placement": "inline"}
    printed = capsys.readouterr().out
    assert "preferred_batch_size" in printed
    assert "left out" in printed


def test_an_ensemble_s_classifiers_are_members_and_its_code_does_not_run(serve, tmp_path, capsys):
    args = serve(shapes.triton_ensemble(tmp_path / "theirs"))
    assert list(members(args)) == ["left", "right"]
    assert args["ensemble"] == {"quorum": 1, "patience_ms": 3000}
    assert "its code is not run" in capsys.readouterr().out


def test_a_server_that_normalizes_says_how(tmp_path):
    tint = read(shapes.model_server_pipeline(tmp_path)).members[0]
    assert tint.flags == {
        "--version": ("1",),
        "--layout": ("NHWC",),
        "--channel-order": ("BGR",),
        "--mean": ("0.5", "0.4", "0.3"),
        "--std": ("0.25", "0.2", "0.2"),
    }


def test_properties_and_the_highest_version_are_kept(serve, tmp_path):
    args = serve(shapes.model_server_one(tmp_path / "theirs"))
    tint = members(args)["tint"]
    assert (tint["version"], tint["streams"]) == (3, 1)


def test_a_sequence_of_unsure_answers_is_a_cascade(serve, tmp_path):
    args = serve(shapes.kserve_sequence(tmp_path / "theirs"))
    assert args["ensemble"]["cascade"] == {"order": ["tint", "shade"], "exit_at": [0.9]}


def test_a_split_is_a_canary(serve, tmp_path):
    args = serve(shapes.seldon_test(tmp_path / "theirs"))
    assert members(args)["old"]["canary"] == {"share": 0.2, "version": 2}


def test_a_model_that_is_not_there_stays_on_its_server(tmp_path):
    [tint] = read(shapes.kserve(tmp_path, shapes.service("tint", "s3://bucket/tint"))).members
    assert tint.settings == {"kind": "open_inference", "url": "http://tint-predictor.shop", "model": "tint"}
    unit = {"name": "tint", "type": "MODEL", "parameters": [{"name": "grpc_endpoint", "value": "models:8001"}]}
    file = shapes.text(tmp_path / "seldon.yaml", yaml.safe_dump(shapes.deployment(unit)))
    [tint] = read(file).members
    assert tint.settings == {"kind": "tensorflow_serving", "url": "grpc://models:8001", "model": "tint"}


def triton(root, config, **files):
    for name, write in files.items():
        write(root / "tint/1" / name.replace("_", "."))
    shapes.text(root / "tint/config.pbtxt", config)
    return root


def empty(file):
    shapes.text(file, "")


REFUSED = {
    "TorchServe's archive": (lambda root: shapes.text(root / "tint.mar", ""), "export its model as ONNX"),
    "a pickle": (lambda root: shapes.text(root / "tint.pkl", ""), "a pickle holds code"),
    "a plan for a GPU": (
        lambda root: triton(root, 'platform: "tensorrt_plan"', model_plan=empty),
        "give the ONNX file",
    ),
    "labels elsewhere": (
        lambda root: triton(
            root, 'backend: "onnxruntime" output { name: "output" label_filename: "../../x" }', model_onnx=shapes.onnx
        ),
        "leads out of",
    ),
    "a model with a state": (
        lambda root: triton(root, 'backend: "onnxruntime" sequence_batching {}', model_onnx=shapes.onnx),
        "no classifier of images",
    ),
    "two ensembles": (
        lambda root: (
            [
                shapes.text(root / name / "config.pbtxt", 'ensemble_scheduling { step { model_name: "x" } }')
                for name in "ab"
            ]
            and root
        ),
        "name one of them: --from",
    ),
    "a model that is elsewhere": (
        lambda root: shapes.text(
            root / "config.json", '{"model_config_list": [{"config": {"name": "a", "base_path": "/x"}}]}'
        ),
        "copy or fetch the models beside the file",
    ),
    "a switch": (
        lambda root: shapes.kserve(root, shapes.graph("Switch", {"serviceName": "a", "condition": "x"})),
        "name the models by --members",
    ),
    "a sequence without a threshold": (
        lambda root: shapes.kserve(root, shapes.graph("Sequence", {"serviceName": "a"}, {"serviceName": "b"})),
        "tune-cascade",
    ),
    "a graph that leads to itself": (
        lambda root: shapes.kserve(root, shapes.graph("Ensemble", {"nodeName": "root"})),
        "leads to itself",
    ),
    "a router of one's own": (
        lambda root: shapes.text(
            root / "x.yaml", yaml.safe_dump(shapes.deployment({"name": "mine", "type": "ROUTER", "children": []}))
        ),
        "name the models by --members",
    ),
    "a share that is none": (
        lambda root: shapes.kserve(
            root,
            shapes.service("a", "pvc://a"),
            shapes.service("b", "pvc://b"),
            shapes.graph("Splitter", {"serviceName": "a", "weight": 0}, {"serviceName": "b", "weight": 0}),
        ),
        "above 0",
    ),
    "a ratio that is no number": (
        lambda root: shapes.text(
            root / "x.yaml",
            yaml.safe_dump(
                shapes.deployment(
                    {"name": "s", "type": "ROUTER", "implementation": "RANDOM_ABTEST"}
                    | {"parameters": [{"name": "ratioA", "value": "half"}], "children": []}
                )
            ),
        ),
        "no share",
    ),
    "a parameter that is no message": (
        lambda root: triton(root, 'backend: "onnxruntime" parameters { key: "a" value: "b" }', model_onnx=shapes.onnx),
        "no mapping of fields",
    ),
    "a link that leads to itself": (
        lambda root: (
            (root / "tint").mkdir()
            or (root / "tint/names").symlink_to("names")
            or triton(
                root, 'backend: "onnxruntime" output { name: "output" label_filename: "names" }', model_onnx=shapes.onnx
            )
        ),
        "leads out of",
    ),
    "aliases that grow without end": (
        lambda root: shapes.text(
            root / "x.yaml",
            "kind: SeldonDeployment\na0: &a0 [x, x]\n"
            + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
            + "spec: *a39\n",
        ),
        "values, by aliases",
    ),
    "something else": (lambda root: shapes.text(root / "notes.txt", "x"), "is named by --members"),
    "no text": (lambda root: triton(root, "name: {", model_onnx=shapes.onnx), "no text of a protobuf message"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_served_is_refused_with_a_way_out(what, tmp_path):
    make_it, told = REFUSED[what]
    (tmp_path / "theirs").mkdir()
    with pytest.raises((ScriptError, ModelError), match=told) as refused:
        read(make_it(tmp_path / "theirs"))
    assert "\n" not in str(refused.value)


def test_a_failed_import_leaves_nothing(tmp_path, few, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = shapes.triton_ensemble(tmp_path / "theirs")
    shapes.ir(root / "right/1/model.xml", colours=TWO)
    with pytest.raises(ScriptError, match="right"):
        call(init.main, "my.yaml", "--from", root, "--data", few)
    assert versions(tmp_path / "models", "left") == []
    assert not Path("my.yaml").exists()


def test_a_field_may_be_there_several_times(tmp_path):
    file = shapes.text(tmp_path / "x", 'dims: 1 dims: [2, -3] name: \'a\' "b" name: "c" on: true half < rate: .5 >')
    assert protobuf_text.read(file) == {"dims": [1, 2, -3], "name": "c", "on": True, "half": {"rate": 0.5}}


def test_no_mutation_of_a_configuration_is_a_traceback_or_reads_another_file(tmp_path, monkeypatch):
    root = shapes.triton_one(tmp_path)
    outside = shapes.text(tmp_path / "secret.txt", "secret")
    config = root / "tint/config.pbtxt"
    whole, draw, read_files = config.read_text(), random.Random(0), []
    original = Path.open
    monkeypatch.setattr(
        Path, "open", lambda file, *given, **more: read_files.append(file) or original(file, *given, **more)
    )
    pieces = [
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        "-1",
        "1e400",
        "../../secret.txt",
        "\\x00",
        "é",
        "true",
        "input",
        "<",
        "#",
        ",",
    ]
    told = []
    for _ in range(500):
        text = whole
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(text))
            text = text[:place] + draw.choice([*pieces, ""]) + text[place + draw.randint(0, 12) :]
        config.write_text(text)
        try:
            read(root)
        except (ScriptError, ModelError) as err:
            told.append(str(err))
    assert len(told) > 100
    assert not [each for each in told if "\n" in each]
    assert outside not in [file.resolve() for file in read_files]
