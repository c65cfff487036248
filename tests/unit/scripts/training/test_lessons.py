import numpy as np
import pytest

from scripts.errors import ScriptError
from scripts.training.lessons import Lessons

TEACHERS = [{"name": "resnet", "version": 2, "sha256": "00"}]


class Teacher:
    """Answers with the mean of an image, and counts whom it was asked about."""

    def __init__(self):
        self.asked = []

    def __call__(self, rows):
        self.asked.append(len(rows))
        return np.stack([rows.mean((1, 2, 3)), 255 - rows.mean((1, 2, 3))], 1).astype(np.float32)


def images(*levels):
    return np.stack([np.full((4, 4, 3), level, np.uint8) for level in levels])


def test_no_image_is_asked_about_twice_in_this_run_or_the_next(tmp_path):
    teacher, lessons = Teacher(), Lessons(tmp_path / "new" / "lessons.npz", TEACHERS)
    assert lessons.of(images(1, 2, 1), teacher)[:, 0].tolist() == [1, 2, 1]
    assert lessons.of(images(2, 3), teacher)[:, 0].tolist() == [2, 3]
    assert teacher.asked == [2, 1]
    lessons.save()
    later = Lessons(tmp_path / "new" / "lessons.npz", TEACHERS)
    assert later.of(images(3, 2, 1), teacher).tolist() == [[3, 252], [2, 253], [1, 254]]
    assert teacher.asked == [2, 1]
    [file] = (tmp_path / "new").iterdir()
    written = file.stat().st_ino
    later.save()
    assert file.stat().st_ino == written
    later.of(images(4), teacher)
    later.save()
    assert file.stat().st_ino != written


def test_lessons_of_other_teachers_are_told(tmp_path):
    file = tmp_path / "lessons.npz"
    lessons = Lessons(file, TEACHERS)
    lessons.of(images(1), Teacher())
    lessons.save()
    with pytest.raises(ScriptError, match=r"of other teachers: .*resnet.*--lessons"):
        Lessons(file, [{**TEACHERS[0], "version": 3}])


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04"])
def test_what_holds_no_lessons_is_told(tmp_path, content):
    file = tmp_path / "lessons.npz"
    file.write_bytes(content)
    with pytest.raises(ScriptError, match=r"holds no lessons.*--lessons"):
        Lessons(file, TEACHERS)


def test_another_archive_holds_no_lessons(tmp_path):
    file = tmp_path / "lessons.npz"
    np.savez(file, teachers="[]")
    with pytest.raises(ScriptError, match="holds no lessons"):
        Lessons(file, TEACHERS)
