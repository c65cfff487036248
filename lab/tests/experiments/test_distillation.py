import sys
from dataclasses import replace

import numpy as np
import pytest

from lab import reported
from lab.experiments import __main__ as command
from lab.experiments import distillation, students
from lab.experiments.distillation import Judge, compare, picture, table
from lab.experiments.students import DIST, HINTON, LABELS, MIXED, WAYS, School, Student
from scripts.errors import ScriptError
from tests.unit.scripts.tiny import add, constant

COUNT = 400
TRUTH = np.arange(COUNT) % 2


def answers(wrong, sure=0.9):
    """Probabilities of two classes: the first images are answered wrongly, and those with less certainty."""
    right = np.where(np.arange(COUNT) < wrong, 1 - TRUTH, TRUTH)
    certainty = np.where(np.arange(COUNT) < wrong, 0.6, sure)
    return np.where(np.arange(2) == right[:, None], certainty[:, None], 1 - certainty[:, None]).astype(np.float32)


@pytest.fixture
def school(tmp_path, draw):
    data = draw({"cat": 30, "dog": 30}, (32, 32))
    return School(data, tmp_path / "folder", 40, 10, 2, 2, (0.5, 1.0), (32, 16), 3)


@pytest.fixture
def rows():
    """Labels err on 80 and 100 images, everybody else on 60; the teachers never."""
    judge = Judge(TRUTH, answers(0), np.arange(COUNT) % 4 < 2, 10.0)
    found = {
        Student(size, 0.5, way, seed): answers(80 + 20 * seed if way == LABELS else 60)
        for size in (32, 20)
        for way in WAYS
        for seed in (0, 1)
    }
    first = {"epochs": 1, "mixtures": 2, "learnt": 9, "judged": COUNT, "missing": ["width 1"]}
    rows = [{**first, "teachers_top1": 100.0, "teachers_cpu_ms": 10.0}]
    for size in (32, 20):
        own = {each: given for each, given in found.items() if each.size == size}
        shape = {"width": 0.5, "size": size, "mmac": 4.0, "cpu_ms": 1.0}
        rows += [{**shape, **judge.way(way, own, 1.0)} for way in WAYS]
    return rows


def test_students_differ_in_what_is_compared_and_in_nothing_else(school):
    students = school.students()
    assert len(set(students)) == len(students) == 2 * 2 * 2 * len(WAYS)
    assert len({school.answers_of(each) for each in students}) == len(students)
    recipes = {each.way: school.recipe(each).to_json() for each in students[: len(WAYS)]}
    changed = {
        name for name in recipes[MIXED] if len({str(recipes[way][name]) for way in (MIXED, HINTON, DIST)}) > 1
    } - {"teachers"}
    assert changed == {"teacher_weight", "teacher_loss"}
    assert (recipes[LABELS]["mix"], recipes[LABELS]["teachers"]) == ("none", [])
    # Of 60 images 40 are learnt, and 10 of the others judge.
    assert {each["hold_out"] for each in recipes.values()} == {20}
    assert len(school.judging()) == 10


def test_kept_answers_are_of_these_images_and_these_teachers(school, tmp_path, draw, monkeypatch):
    alone, taught = Student(32, 0.5, LABELS, 1), Student(32, 0.5, DIST, 1)
    before = [school.answers_of(each) for each in (alone, taught)]

    def changed(**fields):
        other = replace(school, **fields)
        return [other.answers_of(each) != kept for each, kept in zip((alone, taught), before, strict=True)]

    assert changed() == [False, False]
    # As many are learnt, and others judge.
    assert changed(hold_out=20) == [True, True]
    assert changed(data=draw({"cat": 29, "dog": 31}, (32, 32), "other.zip")) == [True, True]
    for name in students.MEMBERS:
        add(tmp_path / "models", name, constant([0.1, 0.9]), "FP16")
    monkeypatch.setattr(students, "DEFAULT_ROOT", tmp_path / "models")
    assert changed() == [False, True]


def test_a_way_is_compared_with_labels_image_by_image(rows):
    labels, mixed = rows[1], rows[2]
    assert labels["top1"] == {"0": 80.0, "1": 75.0}
    assert "difference" not in labels
    mean, low, high = mixed["difference"]
    assert mean == pytest.approx(7.5)
    assert 4 < low < mean < high < 11


def test_a_student_in_front_answers_what_it_is_sure_of(rows):
    # Of the images 60 are answered wrongly, and these with less certainty than the threshold.
    assert rows[2]["answered"] == [pytest.approx(85.0)] * 2
    assert rows[2]["lost"] == [0.0, 0.0]
    assert all(0.6 < each <= 0.9 for each in rows[2]["exit_at"])
    assert rows[2]["cpu_share"] == [pytest.approx(100 * (1 + 0.15 * 10) / 10)] * 2


def test_everything_is_shown_and_compared(rows):
    made = table(rows)
    assert len(made.lines) == 2 * len(WAYS)
    assert made.lines[1][5:8] == ["85.00, 85.00", "85.00", "+7.50 (+5.16 to +9.84)"]
    assert any("Not trained: width 1." in note for note in made.notes)
    found = compare(rows)
    assert set(found) == {each.what for each in reported.of("distillation")}
    assert found["edge of a student's images, after"].value == 20
    assert found["change of the mean absolute error"].value == pytest.approx(100 * (15 / 22.5 - 1))
    groups = picture(rows)
    assert [[bar.label for bar in bars if bar.ours] for _, bars in groups] == [[HINTON, DIST]] * 2


def test_missing_pytorch_and_a_run_without_a_student_are_told(school, monkeypatch):
    with pytest.raises(ScriptError, match="is finished; leave --finished out"):
        distillation.measure(school, finished=True)
    monkeypatch.setattr(distillation, "find_spec", lambda _: None)
    with pytest.raises(ScriptError, match="make train"):
        distillation.check()


def test_the_images_must_be_named(monkeypatch, capsys):
    monkeypatch.setattr(distillation, "default_data", lambda: None)
    monkeypatch.setattr(sys, "argv", ["experiments", "distillation"])
    with pytest.raises(SystemExit):
        command.main()
    assert "name the images by --data" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_interrupted_run_trains_what_is_not_finished(school, monkeypatch):
    pytest.importorskip("torch", reason="training needs PyTorch: make train")
    for way in (HINTON, DIST):
        monkeypatch.delitem(WAYS, way)
    school = School(school.data, school.folder, 40, 10, 1, 1, (0.25,), (16,), 1)
    steps = school.train()
    (first, given), _ = next(steps), steps.close()
    assert given.shape == (10, 2)
    trained = []
    monkeypatch.setattr(School, "_train", lambda _, student, shared: trained.append(student))
    monkeypatch.setattr(School, "model_of", lambda *_: None)
    monkeypatch.setattr("lab.experiments.students.predict", lambda *_: [given])
    assert [student.way for student, _ in school.train()] == [LABELS, MIXED] == list(WAYS)
    assert trained == [first._replace(way=MIXED)]
    assert len(dict(school.finished())) == 2
