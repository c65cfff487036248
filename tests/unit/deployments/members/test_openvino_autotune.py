import json

import pytest

from deployments.members import openvino_autotune
from deployments.members.openvino_autotune import best_streams


class Model:
    """Executes a batch in so many milliseconds, by the number of streams, on a clock of its own."""

    def __init__(self, monkeypatch, compiling_s=0.0, **taken):
        self.now, self.compiled = 0.0, []
        self._taken = {int(name[1:]): ms for name, ms in taken.items()}
        self._compiling_s = compiling_s
        monkeypatch.setattr(openvino_autotune.time, "perf_counter", lambda: self.now)

    def __call__(self, count):
        self.compiled.append(count)
        self.now += self._compiling_s

        def execute():
            self.now += self._taken[count] / 1000

        return execute


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ensemble-serving" / "measured"


@pytest.mark.parametrize(
    ("taken", "best"),
    [
        ({"_1": 20, "_8": 10, "_4": 12, "_2": 15}, 8),
        ({"_1": 10, "_8": 20, "_4": 12, "_2": 15}, 1),
        ({"_1": 20, "_8": 20, "_4": 12, "_2": 15}, 4),
        # Less than a twentieth is not worth the memory of more.
        ({"_1": 10.4, "_8": 10, "_4": 10.2, "_2": 20}, 1),
    ],
)
def test_the_fewest_streams_that_are_about_as_fast_as_any(monkeypatch, taken, best):
    model = Model(monkeypatch, **taken)
    assert best_streams(["a"], 8, model) == best
    assert model.compiled == [1, 8, 4, 2]
    assert model.now < 2.5


def test_a_measurement_in_a_folder_that_others_can_change_is_not_trusted(monkeypatch, kept):
    assert best_streams(["a"], 2, Model(monkeypatch, _1=10, _2=20)) == 1
    kept.chmod(0o777)
    assert best_streams(["a"], 2, Model(monkeypatch, _1=20, _2=10)) == 2
    kept.chmod(0o700)
    assert best_streams(["a"], 2, Model(monkeypatch, _1=20, _2=10)) == 1


def test_one_thread_leaves_nothing_to_measure(monkeypatch):
    model = Model(monkeypatch)
    assert best_streams(["a"], 1, model) == 1
    assert model.compiled == []


def test_a_model_that_takes_long_is_measured_at_both_ends_alone(monkeypatch):
    model = Model(monkeypatch, compiling_s=1.5, _1=600, _16=500, _8=1, _4=1)
    assert best_streams(["a"], 16, model) == 16
    assert model.compiled == [1, 16]


def test_a_measurement_is_kept_for_the_same_model_machine_and_software(monkeypatch, kept):
    first = Model(monkeypatch, _1=20, _2=10)
    assert best_streams(["model", "CPU A"], 2, first) == 2
    [file] = kept.iterdir()
    assert json.loads(file.read_text()) == {"1": pytest.approx(20), "2": pytest.approx(10)}
    again = Model(monkeypatch, _1=10, _2=20)
    assert best_streams(["model", "CPU A"], 2, again) == 2
    assert again.compiled == []
    # Anew on another CPU, with other threads, and where nobody can read what was kept.
    assert best_streams(["model", "CPU B"], 2, again) == 1
    file.write_text("{")
    assert best_streams(["model", "CPU A"], 2, again) == 1
    assert again.compiled == [1, 2, 1, 2]


def test_where_nothing_can_be_kept_it_is_measured_all_the_same(monkeypatch, tmp_path):
    (tmp_path / "ensemble-serving").write_text("a file, no folder")
    assert best_streams(["a"], 2, Model(monkeypatch, _1=20, _2=10)) == 2
