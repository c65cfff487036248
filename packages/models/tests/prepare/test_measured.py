"""How a prepared model compares with the version before it, with other models, and with what is expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest

from deployments.repository.repository import find
from ensemble_models.prepare import __main__ as prepare
from packages.models.tests.kinds.make import COLOURS, classifier, cosines, pictures, write
from packages.models.tests.tiny import call

# Of the last four classes no image is right.
FEWER = COLOURS | dict.fromkeys(list(COLOURS)[3:], (2000, 2000, 2000))
WORSE = {**COLOURS, "meadow": (105, 115, 110), "poppy": (218, 185, 120)}


def test_a_version_is_compared_with_the_version_before_it_and_with_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "images", pictures(COLOURS))
    for file, colours in (("good", COLOURS), ("worse", WORSE)):
        ov.save_model(classifier(colours), tmp_path / f"{file}.xml", compress_to_fp16=False)
    flags = ("--repository", tmp_path / "models", "--data", tmp_path / "images")
    known = ("--channel-order", "RGB", "--normalize", "unit")
    call(prepare.main, tmp_path / "good.xml", "--name", "m", *flags)
    assert find(tmp_path / "models", "m").metadata["prepared"] == {"data": "images", "images": 98, "top1": 100.0}
    printed = capsys.readouterr().out
    assert "compared with" not in printed
    assert "interpolation not measured (--interpolation says it)" in printed
    call(prepare.main, tmp_path / "worse.xml", "--name", "m", *flags, *known)
    printed = capsys.readouterr().out
    assert "compared with version 1: " in printed
    assert "% of the answers differ, top-1 -" in printed
    call(prepare.main, tmp_path / "good.xml", "--name", "other", *flags)
    call(prepare.main, tmp_path / "worse.xml", "--name", "weak", *flags, *known)
    assert "warning: 'other' reached 100.0 % on these images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (lambda: cosines({name: COLOURS[name] for name in ("coal", "lake", "meadow", "poppy", "sand")}), "calibrate"),
        (lambda: classifier(FEWER), "takes pixels in a way that was not tried"),
    ],
    ids=["far too unsure", "far too sure"],
)
def test_probabilities_that_are_far_from_top1_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], network: Callable[[], ov.Model], told: str
) -> None:
    model = network()
    names = list(COLOURS)[: model.output(0).get_partial_shape()[1].get_length()]
    write(tmp_path / "images", pictures({name: COLOURS[name] for name in names}))
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    known = ("--channel-order", "RGB", "--normalize", "centered" if len(names) < len(COLOURS) else "unit")
    call(prepare.main, tmp_path / "m.xml", "--repository", tmp_path / "models", "--data", tmp_path / "images", *known)
    printed = capsys.readouterr().out
    assert "warning: the mean probability of an answer is" in printed
    assert told in printed
