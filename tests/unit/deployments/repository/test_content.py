"""Files that should be models, and are none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from deployments.repository.content import no_model
from deployments.repository.errors import ModelError
from deployments.repository.labels import read_labels
from deployments.repository.network import read
from deployments.repository.repository import Model

FILES = {
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n": "Git LFS pointer.*git lfs pull",
    b"\n<!DOCTYPE html><html>": "a web page",
    b"": "empty",
    b"\x80\x02}q\x00.": "a pickle.*torch.onnx.export",
    b"\x89HDF\r\n": r"Keras.*model\.export",
    b"\x1f\x8b\x08": "compressed archive: unpack it",
    b"PK\3\4 and no directory": "truncated zip file",
}


@pytest.mark.parametrize(("content", "what"), FILES.items(), ids=range(len(FILES)))
def test_a_file_that_is_no_model_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    (file := tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=rf"model\.onnx is .*{what}"):
        read(Model("m", 1, file, {}))


@pytest.mark.parametrize(
    ("entry", "what"), [("archive/data.pkl", "PyTorch's"), ("model.weights.h5", "Keras'"), ("a.onnx", "unpack it")]
)
def test_an_archive_is_named_by_what_is_in_it(tmp_path: Path, entry: str, what: str) -> None:
    with zipfile.ZipFile(tmp_path / "model", "w") as archive:
        archive.writestr(entry, b"")
    assert what in no_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("0 cat\n1 dog\n", ("cat", "dog")), ("1: cat\n2: big dog\n", ("cat", "big dog")), ("0,\tcat\n", ("cat",)),
        ("n01440764 tench\nn01443537 goldfish\n", ("tench", "goldfish")),
        ("7 up\ncola\n", ("7 up", "cola")), ("5 cat\n6 dog\n", ("5 cat", "6 dog")), ("0\n1\n2\n", ("0", "1", "2")),
    ],
)  # fmt: skip
def test_an_index_or_a_wordnet_id_is_no_part_of_a_name(tmp_path: Path, lines: str, names: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_text(lines)
    assert read_labels(tmp_path / "labels.txt") == names
