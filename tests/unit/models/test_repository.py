import pytest

from models.repository import read_labels, versions


def test_a_folder_that_names_no_version_is_left_alone(tmp_path):
    for name in ("1", "12", "0", "01", "²", "٣", "1.bak", "9" * 200):
        (tmp_path / "m" / name).mkdir(parents=True)
    assert versions(tmp_path, "m") == [1, 12]


@pytest.mark.parametrize("ends", ["", "\n", "\r\n"])
def test_a_label_is_a_line_without_what_editors_add(tmp_path, ends):
    names = ("cat", "a dog\x85 or\u2028 two", "", "bird")
    (tmp_path / "labels.txt").write_bytes(("\ufeff" + (ends or "\n").join(names) + ends).encode())
    assert read_labels(tmp_path / "labels.txt") == names
