from __future__ import annotations

import sys
from pathlib import Path

import openvino as ov
import pytest

from deployments.repository.repository import find
from ensemble_models import labels
from ensemble_models.dataset import Dataset, truth
from packages.models.tests.tiny import add, constant


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["labels", *map(str, arguments)])
    labels.main()


def test_classes_are_renamed_in_every_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    run(monkeypatch, "m", "--repository", tmp_path)
    assert capsys.readouterr().out == "bird\ncat\ndog\n"
    (file := tmp_path / "labels.txt").write_text("crane\ncrane\nbox / carton\n")
    run(monkeypatch, "m", "--repository", tmp_path, "--labels", file)
    for version in (1, 2):
        model = find(tmp_path, "m", version)
        model.verify()
        assert model.labels == ("crane (0)", "crane (1)", "box / carton")
        assert model.metadata["precision"] == "FP16"


def test_a_model_without_metadata_gets_a_file_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "m" / "1").mkdir(parents=True)
    ov.save_model(constant([1, 0, 0]), folder / "model.xml")
    (file := tmp_path / "labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(SystemExit, match="error: the classes of 'm' have no names"):
        run(monkeypatch, "m", "--repository", tmp_path)
    run(monkeypatch, "m", "--repository", tmp_path, "--labels", file)
    model = find(tmp_path, "m")
    assert (model.labels, model.metadata) == (("a", "b", "c"), {})


def test_names_that_do_not_fit_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    (file := tmp_path / "labels.txt").write_text("a\nb\n")
    with pytest.raises(SystemExit, match=r"error: .*has 2 names; version 1 of 'm' has 3 classes"):
        run(monkeypatch, "m", "--repository", tmp_path, "--labels", file)
    (folder := find(tmp_path, "m").folder / "model.bin").write_bytes(b"other")
    file.write_text("a\nb\nc\n")
    with pytest.raises(SystemExit, match="does not match the SHA-256"):
        run(monkeypatch, "m", "--repository", tmp_path, "--labels", file)
    assert folder.is_file()
    assert find(tmp_path, "m").labels == ("bird", "cat", "dog")


def test_an_underscore_stands_for_a_slash_in_a_folder_s_name(tmp_path: Path) -> None:
    add(tmp_path, "m", constant([1, 0, 0]), "FP16", labels=("bird", "box / carton", "dog"))
    (tmp_path / "images" / "box _ carton").mkdir(parents=True)
    (tmp_path / "images" / "box _ carton" / "1.jpg").touch()
    assert truth(Dataset.open(tmp_path / "images"), find(tmp_path, "m")).tolist() == [1]


def test_names_that_change_places_need_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names in another order were "renamed", and the ensemble fell from 61.8 to 44.8 %."""
    add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    file = tmp_path / "labels.txt"
    for names in ("cat\nbird\ndog\n", "dog\nfox\nowl\n"):
        file.write_text(names)
        with pytest.raises(SystemExit, match=r"'bird' becomes '(cat|dog)'.*--permute"):
            run(monkeypatch, "m", "--repository", tmp_path, "--labels", file)
        assert find(tmp_path, "m").labels == ("bird", "cat", "dog")
    run(monkeypatch, "m", "--repository", tmp_path, "--labels", file, "--permute")
    assert find(tmp_path, "m").labels == ("dog", "fox", "owl")
