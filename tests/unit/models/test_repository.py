from models.repository import versions


def test_a_folder_that_names_no_version_is_left_alone(tmp_path):
    for name in ("1", "12", "0", "01", "²", "٣", "1.bak", "9" * 200):
        (tmp_path / "m" / name).mkdir(parents=True)
    assert versions(tmp_path, "m") == [1, 12]
