"""Images that are mixed beforehand: what is drawn of them, and what teachers are asked."""

import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: make train")

from lab.training import __main__ as command  # noqa: E402
from lab.training.data import Mixtures, TrainingData  # noqa: E402
from lab.training.loop import Run  # noqa: E402
from lab.training.recipe import Recipe  # noqa: E402
from lab.training.teachers import Teachers  # noqa: E402
from packages.models.tests.tiny import add, constant  # noqa: E402

COUNT, CLASSES = 1200, 3
# Every pixel tells its image's class: of the class 1 all are 100, of the class 2 all are 200.
LABELS = torch.arange(COUNT) % CLASSES
RAW = (LABELS * 100).byte().view(-1, 1, 1, 1).expand(COUNT, 3, 8, 8).contiguous()
RECIPE = Recipe("student", 1, seed=1, mix="either", mix_probability=1.0, mixtures=2)


class Asked:
    """Teachers that tell an image's mean."""

    def __init__(self):
        self.count = 0

    def __call__(self, pixels):
        assert pixels.dtype == torch.uint8
        self.count += len(pixels)
        return pixels.float().mean((1, 2, 3)).view(-1, 1)

    def provenance(self):
        return []


def test_what_is_drawn_has_its_own_target_and_its_own_answer():
    asked = Asked()
    mixtures = Mixtures(RAW, LABELS, CLASSES, RECIPE, asked)
    assert asked.count == 3 * COUNT
    images, targets, taught = mixtures.draw(torch.arange(COUNT))
    assert images.dtype == torch.uint8
    means = images.float().mean((1, 2, 3))
    # Pixels are rounded.
    torch.testing.assert_close(means, 100 * targets[:, 1] + 200 * targets[:, 2], atol=0.51, rtol=0)
    torch.testing.assert_close(taught[:, 0], means)
    assert (targets.amax(1) < 1).float().mean() > 0.5
    # Of those that were mixed about half have a part cut in, and half are faded into each other.
    levels = torch.tensor([0, 100, 200])
    cut = torch.isin(images.long(), levels).all((1, 2, 3))[targets.amax(1) < 1].float().mean()
    assert 0.3 < cut < 0.7
    assert asked.count == 3 * COUNT


@pytest.mark.parametrize(("probability", "plain"), [(0.0, 1.0), (0.75, 0.25)])
def test_the_rest_stays_as_it_is(probability, plain):
    mixtures = Mixtures(RAW, LABELS, CLASSES, replace(RECIPE, mix_probability=probability), None)
    images, targets, taught = mixtures.draw(torch.arange(COUNT))
    assert taught is None
    as_it_is = (images == RAW).all((1, 2, 3))
    assert (targets[as_it_is].argmax(1) == LABELS[as_it_is]).all()
    # One in three meets its own class.
    assert as_it_is.float().mean() == pytest.approx(plain + (1 - plain) / 3, abs=0.08)


def test_every_run_has_the_same_and_its_own_chance_is_left_alone():
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        mixtures = Mixtures(RAW, LABELS, CLASSES, RECIPE, None)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(0)
        drawn.append(mixtures.draw(torch.arange(COUNT))[0])
    assert torch.equal(*drawn)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_teachers_are_asked_once_about_each_of_them(tmp_path, draw, monkeypatch):
    add(tmp_path / "repository", "sure", constant([0.05, 0.95], (32, 32)), "FP16", ("cat", "dog"))
    asked, ask = [], Teachers.__call__
    monkeypatch.setattr(Teachers, "__call__", lambda self, rows: asked.append(len(rows)) or ask(self, rows))
    recipe = replace(RECIPE, epochs=3, batch_size=8, teachers=("sure",), teacher_weight=1.0)
    data, repository = draw({"cat": 20, "dog": 20}, (32, 32)), tmp_path / "repository"
    Run(recipe, TrainingData(recipe, data, None, 32, repository), tmp_path / "c.pt").finish()
    assert sum(asked) == 3 * 40


def test_mixtures_of_nothing_are_told(monkeypatch, capsys):
    flags = ["student", "--data", "x", "--checkpoint", "c.pt", "--mixtures", "2"]
    monkeypatch.setattr(sys, "argv", ["train", *flags])
    with pytest.raises(SystemExit):
        command.main()
    assert "--mixtures needs --mix" in capsys.readouterr().err


def test_a_width_of_another_architecture_is_told(monkeypatch, capsys):
    flags = ["resnet", "--data", "x", "--checkpoint", "c.pt", "--width", "0.5"]
    monkeypatch.setattr(sys, "argv", ["train", *flags])
    with pytest.raises(SystemExit):
        command.main()
    assert "--width is of the student" in capsys.readouterr().err


def test_teachers_of_batches_that_are_mixed_anew_are_refused(monkeypatch, capsys):
    flags = ["student", "--data", "x", "--checkpoint", "c.pt", "--mix", "cutmix", "--teachers", "resnet"]
    monkeypatch.setattr(sys, "argv", ["train", *flags])
    with pytest.raises(SystemExit):
        command.main()
    assert "give --mixtures" in capsys.readouterr().err
