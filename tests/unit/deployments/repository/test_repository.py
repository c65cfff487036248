import pytest

from deployments.repository.errors import ModelError
from deployments.repository.labels import class_names, read_labels
from deployments.repository.repository import find, versions
from tests.networks import brightness, store


def test_a_folder_that_names_no_version_is_left_alone(tmp_path):
    for name in ("1", "12", "0", "01", "²", "٣", "1.bak", "9" * 200):
        (tmp_path / "m" / name).mkdir(parents=True)
    assert versions(tmp_path, "m") == [1, 12]


@pytest.mark.parametrize("ends", ["", "\n", "\r\n"])
def test_a_label_is_a_line_without_what_editors_add(tmp_path, ends):
    names = ("cat", "a dog\x85or\u2028two", "bird")
    (tmp_path / "labels.txt").write_bytes(("\ufeff" + (ends or "\n").join(names) + 2 * ends).encode())
    assert read_labels(tmp_path / "labels.txt") == ("cat", "a dog or two", "bird")


def test_a_name_of_several_classes_gets_the_index_of_each():
    assert class_names(("crane", "猫", " crane\n"), "here") == ("crane (0)", "猫", "crane (2)")
    with pytest.raises(ModelError, match=r"here: several classes are called 'crane \(1\)'"):
        class_names(("crane", "crane", "crane (1)"), "here")


@pytest.mark.parametrize("nameless", ["", "  ", "\n", "\x00"])
def test_a_class_without_a_name_is_refused(tmp_path, nameless):
    folder = store(tmp_path, "m", brightness(3), classes=("cat", nameless, "dog"))
    with pytest.raises(ModelError, match=r"metadata.json: the class with index 1 has no name"):
        find(tmp_path, "m").labels  # noqa: B018
    (folder / "metadata.json").unlink()
    (folder / "labels.txt").write_text("cat\n \ndog\n")
    with pytest.raises(ModelError, match=r"labels.txt: the class with index 1 has no name"):
        find(tmp_path, "m").labels  # noqa: B018


def test_what_is_in_a_file_of_labels_is_text(tmp_path):
    (tmp_path / "labels.txt").write_bytes("Ærø".encode("latin-1"))
    with pytest.raises(ModelError, match="UTF-8"):
        read_labels(tmp_path / "labels.txt")
