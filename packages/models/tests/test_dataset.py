from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ensemble_models import dataset
from ensemble_models.dataset import LIMITS, Dataset, check_image
from scripts.errors import DatasetError, ScriptError


def write_folder(root: Path) -> Path:
    hidden = ("cat/._1.JPG", ".ipynb_checkpoints/2.jpg", "__MACOSX/cat/1.JPG")
    for name in ("dog/2.jpg", "cat/1.JPG", "cat/0.png", "cat/notes.txt", "stray.jpg", *hidden):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def test_a_folder_lists_labelled_images_sorted(tmp_path: Path) -> None:
    dataset = Dataset.open(write_folder(tmp_path))
    assert dataset.names == ("cat/0.png", "cat/1.JPG", "dog/2.jpg")
    assert dataset.classes == ("cat", "dog")
    assert len(dataset) == 3
    assert list(dataset.read()) == [(b"cat/0.png", "cat"), (b"cat/1.JPG", "cat"), (b"dog/2.jpg", "dog")]


def test_a_zip_file_reads_like_its_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for file in folder.rglob("*.*"):
            archive.write(file, file.relative_to(folder))
    assert list(Dataset.open(tmp_path / "images.zip").read()) == list(Dataset.open(folder).read())


def test_a_folder_s_digest_is_that_of_all_its_images(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    before = Dataset.open(folder).sha256
    (folder / "cat" / "notes.txt").write_text("of no image")
    held = Dataset.open(folder).hold_out(1)[1]
    assert held is not None
    assert held.sha256 == Dataset.open(write_folder(tmp_path / "copy")).sha256 == before
    (folder / "cat" / "0.png").write_bytes(b"another image")
    changed = Dataset.open(folder).sha256
    (folder / "cat" / "0.png").rename(folder / "cat" / "2.png")
    assert len({before, changed, Dataset.open(folder).sha256}) == 3


def test_the_class_is_the_innermost_folder(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.jpg").touch()
    assert Dataset.open(tmp_path).classes == ("cat",)


def test_what_holds_no_labelled_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stray.jpg").touch()
    with pytest.raises(DatasetError, match="holds no"):
        Dataset.open(tmp_path)
    with pytest.raises(DatasetError, match="neither a folder nor a zip"):
        Dataset.open(tmp_path / "stray.jpg")
    with pytest.raises(DatasetError, match="neither a folder nor a zip"):
        Dataset.open(tmp_path / "missing.zip")


def test_a_damaged_directory_of_a_zip_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.jpg", b"picture")
    path.write_bytes(path.read_bytes().replace(b"PK\1\2", b"none"))
    with pytest.raises(DatasetError, match=r"images\.zip: Bad magic number"):
        Dataset.open(path)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").symlink_to("missing.jpg")
    with pytest.raises(DatasetError, match=r"cat/1\.jpg: .*No such file"):
        list(Dataset.open(tmp_path).read())


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [(8, 1, "encrypted"), (10, 99, "compression"), (16, 7, "CRC")],
    ids=["encrypted", "packed unusually", "damaged"],
)
def test_what_cannot_be_unpacked_is_told(tmp_path: Path, offset: int, value: int, message: str) -> None:
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.jpg", b"picture")
    content = bytearray(path.read_bytes())
    # Fields of the archive's directory and, two bytes before those, of the file's own header.
    content[content.index(b"PK\1\2") + offset] = value
    content[offset - 2] = value
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=f"cat/1.jpg: .*{message}"):
        list(Dataset.open(path).read())


def test_every_format_that_the_server_decodes_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole classes of .webp, .bmp and .tif images vanished without a word."""
    for name in ("cat/1.webp", "dog/1.bmp", "emu/1.tif", "fox/1.JPG", "fox/2.heic"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert Dataset.open(tmp_path).classes == ("cat", "dog", "emu", "fox")
    assert "1 images are skipped, because they can't be read, as fox/2.heic" in capsys.readouterr().out
    (tmp_path / "fox" / "1.JPG").unlink()
    with pytest.raises(DatasetError, match=r"no image of class 'fox' can be read, as fox/2\.heic; save them as JPEG"):
        Dataset.open(tmp_path)


def test_training_images_are_not_merged_with_others(tmp_path: Path) -> None:
    """ "Images that trained nothing" were train/ and val/ together."""
    for name in ("train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/dog/2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    with pytest.raises(DatasetError, match=r"several sets of images, train, val: name one, as .*/val"):
        Dataset.open(tmp_path)
    assert Dataset.open(tmp_path / "val").names == ("cat/1.jpg", "dog/2.jpg")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for file in sorted(tmp_path.rglob("*.jpg")):
            archive.write(file, file.relative_to(tmp_path))
    inside = Dataset.open(tmp_path / "images.zip" / "val")
    assert list(inside.read()) == [(b"val/cat/1.jpg", "cat"), (b"val/dog/2.jpg", "dog")]
    assert inside.sha256 == Dataset.open(tmp_path / "val").sha256
    (tmp_path / "sorted" / "pets" / "cat").mkdir(parents=True)
    (tmp_path / "sorted" / "farm" / "cow").mkdir(parents=True)
    for name in ("pets/cat/1.jpg", "farm/cow/1.jpg"):
        (tmp_path / "sorted" / name).touch()
    assert Dataset.open(tmp_path / "sorted").classes == ("cat", "cow")


def test_a_zip_file_of_windows_is_read(tmp_path: Path) -> None:
    """Some of its programs separate folders by backslashes."""
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("images\\cat\\1.jpg", b"cat")
        archive.writestr("images\\dog\\1.jpg", b"dog")
    assert list(Dataset.open(tmp_path / "images.zip").read()) == [(b"cat", "cat"), (b"dog", "dog")]


def test_folders_behind_links_are_listed_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    (folder / "dog").rename(tmp_path / "elsewhere")
    (folder / "dog").symlink_to(tmp_path / "elsewhere")
    (folder / "cat" / "again").symlink_to(folder)
    assert Dataset.open(folder).names == ("cat/0.png", "cat/1.JPG", "dog/2.jpg")


def test_accents_of_a_folder_s_name_have_one_form(tmp_path: Path) -> None:
    for number, name in enumerate(("ka\u0308fer", "k\u00e4fer")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{number}.png").touch()
    assert Dataset.open(tmp_path).classes == ("k\u00e4fer",)


@pytest.mark.parametrize("name", ["folder", "images.zip"])
def test_an_image_larger_than_every_limit_is_not_read_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr(dataset, "MOST_IMAGE_BYTES", 1000)
    if name == "folder":
        (tmp_path / name / "cat").mkdir(parents=True)
        (tmp_path / name / "cat" / "bomb.png").write_bytes(bytes(3000))
    else:
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("cat/bomb.png", bytes(3000))
    with pytest.raises(DatasetError, match=r"cat/bomb\.png has more than 1000 bytes"):
        next(Dataset.open(tmp_path / name).read())


def test_an_image_larger_than_the_default_limit_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "large.png").write_bytes(bytes(LIMITS.max_image_bytes + 2))
    [(encoded, _)] = Dataset.open(tmp_path).read()
    assert len(encoded) == LIMITS.max_image_bytes + 2
    with pytest.raises(ScriptError, match=r"large\.png: the image has .* bytes; at most"):
        check_image("large.png", encoded)
