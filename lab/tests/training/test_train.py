from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deployments.repository.errors import ModelError  # noqa: E402
from deployments.repository.repository import find, versions  # noqa: E402
from ensemble_models.dataset import Dataset  # noqa: E402
from ensemble_models.prediction import predict  # noqa: E402
from lab.training import __main__ as command  # noqa: E402
from lab.training import data as drawing  # noqa: E402
from lab.training import loop  # noqa: E402
from lab.training import recipe as recipes  # noqa: E402
from lab.training.architectures import ARCHITECTURES, multiplications, network  # noqa: E402
from lab.training.data import TrainingData, judging_images, load_images  # noqa: E402
from lab.training.export import export  # noqa: E402
from lab.training.loop import Run  # noqa: E402
from lab.training.recipe import Architecture, Recipe  # noqa: E402
from lab.training.teachers import relations  # noqa: E402
from packages.models.tests.tiny import Draw, add, constant  # noqa: E402
from scripts.errors import ScriptError  # noqa: E402

# PyTorch calls its own tracer deprecated; OpenVINO's converter uses it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

COUNTS = {"cat": 20, "dog": 20}


def run(
    recipe: Recipe,
    data: Path,
    validation: Path | None,
    size: int,
    checkpoint: Path,
    initial: Path | None = None,
    **more: Any,
) -> Run:
    learnt = TrainingData(recipe, data, judging_images(recipe, data, validation), size, **more)
    return Run(recipe, learnt, checkpoint, initial)


def train(*args: Any, **more: Any) -> None:
    run(*args, **more).finish()


@dataclass(frozen=True)
class SmallBatches(Recipe):
    batch_size: int = 16


def recipe(epochs: int, architecture: str = "resnet") -> Recipe:
    return SmallBatches(architecture, epochs, seed=1)


def interrupted(rate: float, data: Path, checkpoint: Path, initial: Path | None = None) -> None:
    """Train the first of two epochs, at a part of the rates; the second ends as by Ctrl-C."""

    def decay(progress: float) -> float:
        if progress >= 0.5:
            raise KeyboardInterrupt
        return rate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "decay", decay)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(2), data, None, 32, checkpoint, initial)
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 1


def test_a_batch_in_parts_has_the_gradient_of_the_whole() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 5))
    images, labels = torch.randn(7, 3, 4, 4), torch.arange(7) % 5
    expected = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.2, reduction="sum")
    (gradient,) = torch.autograd.grad(expected, [model[1].weight])
    parts = Recipe("resnet", 1, seed=1, forward_batch_size=3)
    loss = loop.sum_gradients(model, images, labels, parts)
    assert loss == pytest.approx(float(expected.detach()), rel=0.02)
    # bfloat16 inside.
    torch.testing.assert_close(model[1].weight.grad, gradient, atol=0.05, rtol=0.05)


def test_training_resumes_with_the_epoch_after(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, checkpoint = draw(COUNTS, (32, 32)), tmp_path / "checkpoint.pt"
    interrupted(0.01, data, checkpoint)
    assert "epoch 1: loss" in capsys.readouterr().out

    train(recipe(2), data, data, 32, checkpoint)
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 2
    printed = capsys.readouterr().out
    assert "epoch 2: loss" in printed
    assert "top-1" in printed
    assert "epoch 1" not in printed

    with pytest.raises(ScriptError, match="another recipe"):
        train(recipe(3), data, None, 32, checkpoint)
    other = draw({"cat": 20, "dog": 20, "eel": 1}, (32, 32), "other.zip")
    with pytest.raises(ScriptError, match="another classes"):
        train(recipe(2), other, None, 32, checkpoint)
    with pytest.raises(ScriptError, match="another size"):
        train(recipe(2), data, None, 40, checkpoint)
    monkeypatch.setitem(ARCHITECTURES, "resnet", ARCHITECTURES["densenet"])
    with pytest.raises(ScriptError, match="another architecture's weights"):
        train(recipe(2), data, None, 32, checkpoint)


def test_a_run_does_not_go_on_with_other_images_of_a_folder(tmp_path: Path, draw: Draw) -> None:
    data, checkpoint = tmp_path / "images", tmp_path / "checkpoint.pt"
    with zipfile.ZipFile(draw(COUNTS, (32, 32))) as archive:
        archive.extractall(data)
    train(recipe(1), data, None, 32, checkpoint)
    first, second, *_ = sorted(data.rglob("*.png"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(ScriptError, match="another data sha256"):
        run(recipe(1), data, None, 32, checkpoint)


def test_strange_validation_images_are_told_before_training(tmp_path: Path, draw: Draw) -> None:
    strange = draw({"dog": 1, "eel": 1}, (32, 32), "strange.zip")
    with pytest.raises(ScriptError, match="the class 'eel', which is none of cat, dog"):
        train(recipe(1), draw(COUNTS, (32, 32)), strange, 32, tmp_path / "checkpoint.pt")


def test_a_file_that_is_no_checkpoint_is_told(tmp_path: Path, draw: Draw) -> None:
    (tmp_path / "checkpoint.pt").write_text("hello")
    with pytest.raises(ScriptError, match="no checkpoint"):
        train(recipe(1), draw(COUNTS, (32, 32)), None, 32, tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("size", [0, 1, 4, 9])
def test_cutout_takes_a_square_of_its_size(size: int) -> None:
    torch.manual_seed(0)
    cut = (drawing.cutout(torch.ones(200, 3, 32, 32), size) == 0).sum((2, 3))
    assert cut.max() == size * size  # fewer at the border
    assert (cut[:, :1] == cut).all()


@pytest.mark.parametrize("kind", ["cutmix", "mixup", "either"])
def test_an_images_target_is_mixed_as_the_image_is(kind: str) -> None:
    torch.manual_seed(0)
    # Every pixel of an image is its class, of ten.
    labels = torch.arange(1000) % 10
    targets = torch.nn.functional.one_hot(labels, 10).float()
    images = targets.view(1000, 10, 1, 1).expand(1000, 10, 32, 32)
    parts = Recipe("resnet", 1, seed=1, mix=kind, mix_probability=0.5)
    mixed, mixed_targets = drawing.mix(images, targets, parts)
    torch.testing.assert_close(mixed.mean((2, 3)), mixed_targets)
    # Of the half, a tenth met its own class.
    assert 0.4 < (mixed_targets.amax(1) < 1).float().mean() < 0.5
    assert ((mixed == 0) | (mixed == 1)).all() == (kind == "cutmix")


def test_a_run_begins_with_anothers_weights(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    # Other images, for which the whitening would be another.
    train(recipe(1), draw({"cat": 16, "dog": 16}, (40, 40), "first.zip"), None, 32, first)
    data = draw(COUNTS, (32, 32))
    # A rate of nothing: what it begins with is what it ends with.
    interrupted(0.0, data, second, first)
    stopped, begun_with = (torch.load(file, weights_only=True) for file in (second, first))
    for name, parameter in ARCHITECTURES["resnet"](2).named_parameters():
        # Muon gives the convolutions after the first their norm even so.
        ratio = stopped["model"][name].norm() / begun_with["model"][name].norm() if parameter.requires_grad else 1
        torch.testing.assert_close(stopped["model"][name], begun_with["model"][name] * ratio)

    # Resumed, it goes on from its own weights.
    head = next(name for name in reversed(stopped["model"]) if name.endswith("linear.weight"))
    stopped["model"][head].zero_()
    torch.save(stopped, second)
    monkeypatch.setattr(loop, "decay", lambda progress: 0.0)
    train(recipe(2), data, None, 32, second, first)
    assert not torch.load(second, weights_only=True)["model"][head].any()

    export(second, tmp_path / "repository", "m", data=data)
    origin = find(tmp_path / "repository", "m", 1).metadata["source"]["initial"]
    assert origin == {**{what: begun_with[what] for what in ("recipe", "data_sha256")}, "initial": None}
    with pytest.raises(ScriptError, match=r"second\.pt was made with another initial"):
        train(recipe(2), data, None, 32, second)


def test_what_a_run_cannot_begin_with_is_told(tmp_path: Path, draw: Draw) -> None:
    data, first, second = draw(COUNTS, (32, 32)), tmp_path / "first.pt", tmp_path / "second.pt"
    train(recipe(1), data, None, 32, first)
    with pytest.raises(ScriptError, match=r"first\.pt was made with another classes"):
        train(recipe(1), draw({"cat": 1}, (32, 32), "cats.zip"), None, 32, second, first)
    with pytest.raises(ScriptError, match=r"first\.pt holds another architecture's weights"):
        train(recipe(1, "densenet"), data, None, 32, second, first)
    torch.save({**torch.load(first, weights_only=True), "epoch": 0}, first)
    with pytest.raises(ScriptError, match=r"first\.pt is at epoch 0 of 1"):
        train(recipe(1), data, None, 32, second, first)
    torch.save({"model": {}, "recipe": {}}, first)
    with pytest.raises(ScriptError, match=r"first\.pt is no checkpoint"):
        train(recipe(1), data, None, 32, second, first)


def test_the_command_mixes_as_it_is_told(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    data, first, second = draw(COUNTS, (32, 32)), tmp_path / "first.pt", tmp_path / "second.pt"
    train(recipe(1), data, None, 32, first)
    seen = []

    def sum_gradients(
        model: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor, recipe: Recipe, *more: object
    ) -> float:
        seen.append(targets)
        return original(model, images, targets, recipe, *more)

    original = loop.sum_gradients
    monkeypatch.setattr(loop, "sum_gradients", sum_gradients)
    monkeypatch.setattr(recipes, "Recipe", SmallBatches)
    flags = ["--data", data, "--epochs", 1, "--checkpoint", second, "--initial", first]
    flags += ["--mix", "mixup", "--mix-probability", 1, "--label-smoothing", 0.05]
    monkeypatch.setattr(sys, "argv", ["train", "resnet", *map(str, flags)])
    command.main()
    saved = torch.load(second, weights_only=True)
    assert [saved["recipe"][what] for what in ("mix", "mix_probability", "label_smoothing")] == ["mixup", 1.0, 0.05]
    assert saved["initial"]["recipe"]["mix"] == "none"
    # A half meets its own class.
    assert (torch.cat(seen).amax(1) < 1).float().mean() > 0.2


def test_what_is_held_out_is_not_learnt_but_judged_by(
    tmp_path: Path, draw: Draw, capsys: pytest.CaptureFixture[str]
) -> None:
    data, checkpoint = draw(COUNTS, (32, 32)), tmp_path / "checkpoint.pt"
    learnt, held = Dataset.open(data).hold_out(8)
    assert held is not None
    begun = run(replace(recipe(1), hold_out=8), data, None, 32, checkpoint)
    assert len(begun._data.pixels) == len(learnt) == 32
    assert "top-1" in begun.next_epoch()
    with pytest.raises(ScriptError, match="another recipe"):
        train(recipe(1), data, None, 32, checkpoint)


def test_a_student_learns_its_teachers_answers(tmp_path: Path, draw: Draw) -> None:
    """The teachers are sure of what the labels never say."""
    add(tmp_path / "repository", "wrong", constant([0.05, 0.95], (32, 32)), "FP16", ("cat", "dog"))
    data, checkpoint = draw({"cat": 32, "dog": 1}, (32, 32)), tmp_path / "checkpoint.pt"
    taught = replace(recipe(3), teachers=("wrong",), teacher_weight=1.0)
    train(taught, data, None, 32, checkpoint, repository=tmp_path / "repository")
    saved = torch.load(checkpoint, weights_only=True)
    assert [(teacher["name"], teacher["version"]) for teacher in saved["teachers"]] == [("wrong", 1)]
    assert top_classes(saved, data) == {"dog"}
    train(recipe(3), data, None, 32, tmp_path / "plain.pt")
    # It may have learned the one dog, too.
    assert "cat" in top_classes(torch.load(tmp_path / "plain.pt", weights_only=True), data)


def top_classes(saved: dict[str, Any], data: Path) -> set[str]:
    pixels, _ = load_images(Dataset.open(data), 32, saved["classes"])
    normal = (pixels - torch.tensor(saved["mean"]).view(3, 1, 1)) / torch.tensor(saved["std"]).view(3, 1, 1)
    trained = ARCHITECTURES["resnet"](2)
    trained.load_state_dict(saved["model"])
    with torch.no_grad():
        # In the statistics of the batch: so few steps don't settle the running ones.
        return {saved["classes"][index] for index in trained.train()(normal).argmax(1).tolist()}


def test_teachers_of_other_classes_are_told(tmp_path: Path, draw: Draw) -> None:
    repository = tmp_path / "repository"
    add(repository, "birds", constant([0.5, 0.5], (32, 32)), "FP16", ("bird", "cat"))
    taught = replace(recipe(1), teachers=("birds",))
    with pytest.raises(ScriptError, match="other classes"):
        train(taught, draw(COUNTS, (32, 32)), None, 32, tmp_path / "c.pt", repository=repository)


def test_teachers_of_another_size_are_asked_about_mixtures(tmp_path: Path, draw: Draw) -> None:
    repository, data = tmp_path / "repository", draw(COUNTS, (32, 32))
    add(repository, "large", constant([0.3, 0.7], (32, 32)), "FP16", ("cat", "dog"))
    mixed = replace(recipe(1, "student"), mix="mixup", mixtures=1, mix_probability=1.0, teachers=("large",))
    learnt = TrainingData(mixed, data, None, 20, repository)
    learnt.load()
    images, _, taught = learnt.draw(torch.arange(5))
    assert images.shape == (5, 3, 20, 20)
    assert taught is not None
    torch.testing.assert_close(taught, torch.tensor([[0.3, 0.7]]).expand(5, 2), atol=0.01, rtol=0)


def test_photographs_of_any_size_are_trained_on(draw: Draw) -> None:
    images, labels = load_images(Dataset.open(draw({"cat": 1, "dog": 2}, (50, 70))), 32, ("bird", "cat", "dog"))
    assert images.shape == (3, 3, 32, 32)
    assert labels.tolist() == [1, 2, 2]


@pytest.mark.parametrize(("architecture", "mirror"), [("resnet", False), ("densenet", True), ("student", False)])
def test_the_exported_model_answers_as_pytorch_does(
    tmp_path: Path, draw: Draw, architecture: str, mirror: bool
) -> None:
    data, checkpoint = draw(COUNTS, (32, 32)), tmp_path / "checkpoint.pt"
    train(recipe(1, architecture), data, None, 32, checkpoint)
    export(checkpoint, tmp_path / "repository", "m", data=data, validation=Dataset.open(data), mirror=mirror)
    model = find(tmp_path / "repository", "m", 1)
    dataset = Dataset.open(data)

    saved = torch.load(checkpoint, weights_only=True)
    trained = ARCHITECTURES[architecture](2)
    trained.load_state_dict(saved["model"])
    pixels, labels = load_images(dataset, 32, saved["classes"])
    normal = (pixels - torch.tensor(saved["mean"]).view(3, 1, 1)) / torch.tensor(saved["std"]).view(3, 1, 1)
    with torch.no_grad():
        logits = trained.eval()(normal)
        if mirror:
            logits = (logits + trained(normal.flip(3))) / 2
        expected = logits.softmax(1).numpy()
    # Wide enough for bfloat16, in which OpenVINO computes where the CPU can.
    np.testing.assert_allclose(predict([model], dataset)[0], expected, atol=0.05)

    assert model.metadata["precision"] == "FP16"
    assert model.metadata["source"]["recipe"]["seed"] == 1
    assert model.metadata["source"]["epochs"] == 1
    assert model.labels == ("cat", "dog")
    assert model.metadata["source"]["mirrored"] is mirror
    assert model.metadata["source"]["device"] == saved["device"]
    assert abs(model.metadata["accuracy"]["top1"] - 100 * (expected.argmax(1) == labels.numpy()).mean()) <= 5

    with pytest.raises(ModelError, match="version 1"):
        export(checkpoint, tmp_path / "repository", "m", data=data)


def test_an_existing_version_is_told_before_training(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repository" / "resnet" / "1").mkdir(parents=True)
    checkpoint = tmp_path / "checkpoint.pt"
    flags = ["--data", draw(COUNTS, (32, 32)), "--checkpoint", checkpoint, "--output", tmp_path / "repository"]
    monkeypatch.setattr(sys, "argv", ["train", "resnet", *map(str, flags)])
    with pytest.raises(SystemExit, match=r"error: model 'resnet' has a version 1 .* pass --replace"):
        command.main()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--name", "my model"])
    with pytest.raises(SystemExit, match="error: --name 'my model'"):
        command.main()
    assert not checkpoint.exists()


def test_what_was_quantized_from_the_replaced_version_is_told(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, checkpoint = tmp_path / "repository", tmp_path / "checkpoint.pt"
    add(repository, "mine", constant([0, 1, 0]), "FP16")
    add(repository, "mine", constant([0, 1, 0]), "FP16", source={"tool": "scripts.quantize", "version": 1})
    flags = ["--data", draw(COUNTS, (32, 32)), "--checkpoint", checkpoint, "--output", repository, "--name", "mine"]
    monkeypatch.setattr(sys, "argv", ["train", "resnet", "--replace", *map(str, flags)])
    with pytest.raises(SystemExit, match=r"version 2 of 'mine' was quantized from version 1 .* delete"):
        command.main()
    assert not checkpoint.exists()


def test_the_command_exports_a_finished_checkpoint(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    data, checkpoint = draw(COUNTS, (32, 32)), tmp_path / "checkpoint.pt"
    monkeypatch.setattr(recipes, "Recipe", SmallBatches)
    flags = ["--data", data, "--checkpoint", checkpoint, "--epochs", "1"]
    for more in ([], ["--output", tmp_path / "repository", "--name", "mine"]):
        monkeypatch.setattr(sys, "argv", ["train", "densenet", *map(str, [*flags, *more])])
        command.main()
    assert versions(tmp_path / "repository", "mine") == [1]


@pytest.mark.parametrize(
    ("architecture", "most"), [("resnet", 120), ("resnet13", 125), ("densenet", 95), ("student", 15)]
)
def test_an_architecture_costs_what_it_says(architecture: str, most: int) -> None:
    """Multiplications of the convolutions and the head, in millions, of an image of 32x32."""
    assert most - 1.5 < multiplications(ARCHITECTURES[architecture](10), 32) <= most


def test_a_narrow_student_costs_less_and_is_exported(tmp_path: Path, draw: Draw) -> None:
    data, checkpoint = draw(COUNTS, (32, 32)), tmp_path / "checkpoint.pt"
    train(replace(recipe(1, "student"), width=0.5), data, None, 20, checkpoint)
    saved = torch.load(checkpoint, weights_only=True)
    assert multiplications(network(saved["recipe"], 2), 32) < 15 / 3
    export(checkpoint, tmp_path / "repository", "narrow", data=data)
    assert predict([find(tmp_path / "repository", "narrow", 1)], Dataset.open(data))[0].shape == (40, 2)


def test_relations_are_those_of_classes_and_of_images() -> None:
    torch.manual_seed(0)
    taught = torch.randn(50, 4).softmax(1)
    assert float(relations(taught.log(), taught)) == pytest.approx(0, abs=1e-3)
    # Of each image the classes correlate by 1 still; of each class the images no longer do.
    flat = torch.tensor([0.1, 0.2, 0.3, 0.4])
    scaled = torch.rand(50, 1) * (flat - 0.25) + 0.25
    assert float(relations(scaled.log(), flat.expand(50, 4))) == pytest.approx(2 * 50, rel=1e-3)
    shuffled = taught[torch.randperm(50)]
    assert float(relations(taught.log(), shuffled)) == pytest.approx(4 * 50, rel=0.2)
    expected = np.mean([1 - np.corrcoef(a, b)[0, 1] for a, b in zip(taught, shuffled, strict=True)])
    expected += np.mean([1 - np.corrcoef(a, b)[0, 1] for a, b in zip(taught.T, shuffled.T, strict=True)])
    assert float(relations(taught.log(), shuffled)) == pytest.approx(2 * 50 * expected, rel=1e-3)


def test_every_architecture_that_can_be_named_is_there() -> None:
    assert set(get_args(Architecture)) == set(ARCHITECTURES)
