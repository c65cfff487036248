import pytest

from deployments.repository.repository import DEFAULT_ROOT, find
from lab import reported
from lab.experiments import distillation
from lab.experiments.distillation import DIST, HINTON, LABELS, MIXED, WAYS, School, Student, students


def test_students_differ_in_what_is_compared_and_in_nothing_else():
    assert len(set(students())) == len(students()) == 2 * 3 * len(WAYS)
    recipes = {each.way: each.recipe(50_000).to_json() for each in students()[: len(WAYS)]}
    changed = {
        name for name in recipes[MIXED] if len({str(recipes[way][name]) for way in (MIXED, HINTON, DIST)}) > 1
    } - {"teachers"}
    assert changed == {"teacher_weight", "teacher_loss"}
    assert (recipes[LABELS]["mix"], recipes[LABELS]["teachers"]) == ("none", [])
    assert {each["hold_out"] for each in recipes.values()} == {30_000}


def test_seeds_are_together_beside_those_by_labels():
    def row(size, way, seed):
        return {"size": size, "way": way, "seed": seed, "cpu_ms": 1.0}

    rows = [
        {**row(size, way, seed), "top1": size + seed + 5.0 * (way != LABELS)}
        for size in (32, 20)
        for way in (LABELS, HINTON)
        for seed in (1, 3)
    ]
    shown = distillation.shown([{"size": 32, "way": distillation.TEACHERS, "top1": 99.0, "cpu_ms": 3.0}, *rows])
    assert [each["top1"] for each in shown] == [99, 34, 39, 22, 27]
    assert [each.get("gain") for each in shown] == [None, None, 5, None, 5]
    assert (shown[1]["low"], shown[1]["wrong"], shown[1]["high"]) == (65, 66, 67)
    found = distillation.DISTILLATION.compare(shown)
    unlike = {"error of the previous model", "error of the student after all measures", distillation.DISTILLED}
    assert set(found) == {each.subject for each in reported.of("distillation")} - unlike
    assert found["error with small images"].startswith("78.00 % wrong, +18 %")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_students_are_trained_and_judged(draw, monkeypatch):
    pytest.importorskip("torch", reason="training needs PyTorch: make train")
    for name, value in (("LEARNT", 40), ("JUDGED", 10), ("EPOCHS", 1)):
        monkeypatch.setattr(distillation, name, value)
    school = School(draw(dict.fromkeys(find(DEFAULT_ROOT, "resnet").labels, 6), (32, 32)))
    for way in (LABELS, MIXED):
        [row] = school.train(Student(16, way, 1))
        assert 0 <= row["top1"] <= 100
        assert min(row["mmac"], row["cpu_ms"]) > 0
