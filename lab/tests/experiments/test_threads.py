import subprocess
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from graph.config import parse
from lab import reported
from lab.experiments import threads
from lab.experiments.threads import THREADS, Setting, grid
from scripts.errors import ScriptError
from scripts.shipped import shipped


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(threads, "available_cpus", lambda: 2)


def test_the_grid_has_each_setting_once_and_one_default_for_each_number_of_cpus():
    assert len(set(grid())) == len(grid()) == 6 + 6
    assert [(each.quota, each.workers, each.threads) for each in grid() if each.is_default] == [
        (None, 1, 1),
        (threads.QUOTA, 1, 1),
    ]


@pytest.mark.parametrize("setting", [Setting(2, 1, True), Setting(1, 2, False)])
def test_a_setting_is_a_configuration(setting):
    config = yaml.safe_load(shipped("configs/colocated.yaml").read_text())
    setting.edit(config)
    application = config["applications"][0]
    parsed = parse(application["args"])
    assert parsed.cpus == ("auto" if setting.pinned else None)
    assert {member.threads for member in parsed.members} == {setting.threads}
    assert application["deployments"][0]["num_replicas"] == setting.workers


def test_what_could_not_be_measured_has_its_row_and_the_default_is_compared_with_its_own_best(monkeypatch):
    asked = []

    @contextmanager
    def running(system, load, edit, inside):
        asked.append(edit.__self__)
        if asked[-1].workers == 2 and asked[-1].pinned:
            raise ScriptError("no\nroom")
        rate = 100.0 * asked[-1].threads
        found = {"requests": 1000, "requests_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0, "other": 0}
        yield SimpleNamespace(load=lambda *_: found)

    served, limits, alone = [each for each in grid() if each.computed == threads.SERVED], [], []

    def together(workers, seconds):
        alone.append(workers)
        return [{"ms": 3.0, "images_per_s": 1000.0 * worker.threads + len(worker.cpus)} for worker in workers]

    monkeypatch.setattr(threads, "together", together)
    monkeypatch.setattr(threads, "usable", lambda: [4, 5])

    @contextmanager
    def quota(cpus):
        limits.append(cpus)
        yield ()

    monkeypatch.setattr(threads, "running", running)
    monkeypatch.setattr(threads, "quota", quota)
    monkeypatch.setattr(threads, "workload", lambda *_: None)
    rows = [row for part in threads.parts(1.0) for row in part.rows()]
    assert asked == served
    assert [worker.cpus for worker in alone[3]] == [worker.cpus for worker in alone[5]] == [(4,), (5,)]
    assert {worker.cpus for workers in (*alone[:3], alone[4]) for worker in workers} == {()}
    assert limits == [each.quota for each in asked]
    shown = THREADS.summary(rows * 3)
    made = THREADS.table(shown)
    assert [line[4] for line in made.lines].count("") == 1
    assert {line[1] for line in made.lines} == {"all", "all, pinned", "a quota of 1.5"}
    assert {row["requests"] for row in shown[:3]} == {3000}
    assert [row["share"] for row in shown if row["default"]] == [50, 100]
    [note] = made.notes
    assert note.endswith("room")
    found = THREADS.compare(shown)
    unlike = {"image scoring, where more workers made it worse"}
    assert {each.subject for each in reported.of("threads")} - unlike == set(found)
    one, two, own = "by PyTorch: 1 x 2", "by PyTorch: 2 x 2", "by PyTorch: 2 x 1, pinned"
    assert found["the base: one worker with the default threads"] == f"2000.0 images/s {one}"
    assert found["more workers with the default threads"] == f"4000.0 images/s {two}, better, so not reproduced"
    assert found["threads matched, pinned to physical cores, by IPEX"] == f"2002.0 images/s {own}"
    assert found["a purely neural model, before all steps"] == f"2000.0 images/s {one}"
    openvino = "2002.0 images/s by OpenVINO: 2 x 1, pinned"
    assert found["a purely neural model, after all steps"] == f"2002.0 images/s {own}; {openvino}"
    assert [sum(bar.ours for bar in bars) for _, bars in THREADS.picture.groups(shown)] == [1, 1, 0, 0]


@pytest.fixture
def version_1(tmp_path):
    """A hierarchy of control groups of version 1."""
    (tmp_path / "cpu").mkdir()
    return tmp_path


def test_a_command_runs_in_a_group_with_the_quota(version_1):
    with threads.quota(1.5, version_1) as inside:
        [group] = (version_1 / "cpu").glob("ensemble-lab-*")
        assert int((group / "cpu.cfs_quota_us").read_text()) / int((group / "cpu.cfs_period_us").read_text()) == 1.5
        ran = subprocess.run([*inside, "echo", "a b", "c"], capture_output=True, text=True, check=True)
        assert ran.stdout == "a b c\n"
        assert int((group / "cgroup.procs").read_text()) > 0
        # The files of a real group vanish with it.
        for file in group.iterdir():
            file.unlink()
    assert list((version_1 / "cpu").iterdir()) == []


def test_without_a_quota_no_group_is_made(version_1):
    with threads.quota(None, version_1) as inside:
        assert inside == ()
        assert list((version_1 / "cpu").iterdir()) == []


def test_a_hierarchy_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(ScriptError, match="run as root"), threads.quota(1.0, tmp_path / "none"):
        pass
