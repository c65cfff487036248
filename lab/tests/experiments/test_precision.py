import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from ensemble_models.check.served import Answers
from ensemble_models.dataset import Dataset
from lab import reported
from lab.benchmark.workloads import workload
from lab.experiments import engines, precision
from lab.experiments.engines import Worker, timed, together
from scripts.errors import ScriptError


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """The rows of a server that answers worse over gRPC, and of engines that are twice as slow as the one before."""
    asked = []
    # Each is measured in three rounds, by one client and by many.
    measured = iter([{"ms": 2.0 ** (number // 6), "images_per_s": 100.0 - number // 6} for number in range(99)])

    @contextmanager
    def running(system, load):
        asked.append((system.placement, load.version))
        yield

    def ask(url, data, connections):
        right = 9 if url.startswith("http") else 8
        rights = {None: 10, "resnet": right, "densenet": right - asked[-1][1]}
        return Answers(10, {name: [(0.5, row < count) for row in range(10)] for name, count in rights.items()})

    monkeypatch.setattr(precision, "running", running)
    monkeypatch.setattr(precision, "ask", ask)
    monkeypatch.setattr(precision, "labelled", lambda: Dataset(tmp_path, ()))
    monkeypatch.setattr(precision, "together", lambda *_, **__: [next(measured)])
    made = precision.PRECISION.summary([row for part in precision.parts(1.0) for row in part.rows()])
    assert asked == [("colocated", 1), ("colocated", 2)]
    return made


def test_every_network_is_computed_by_every_engine_and_the_bundled_ones_have_an_accuracy(rows):
    made = precision.PRECISION.table(rows).lines
    assert len(made) == 2 * 4 + 2
    lines = {(line[0], line[1]): line[2:] for line in made}
    assert lines["ResNet-50", "PyTorch, float32"] == ["1.00", "100.0"]
    top1 = {(row["model"], row["way"]): row["top1"] for row in rows if "top1" in row}
    assert len(top1) == 2 * 3
    assert top1["bundled DenseNet", "OpenVINO, int8"] == pytest.approx({"HTTP": 70, "gRPC": 60})
    assert top1["both bundled models", "OpenVINO, int8"] == pytest.approx({"HTTP": 100, "gRPC": 100})


def test_every_reported_figure_is_answered(rows):
    found = precision.PRECISION.compare(rows)
    assert set(found) == {each.subject for each in reported.of("precision")}
    assert found["ResNet, float32, TensorFlow"] == "1.00 ms"
    assert found["top-1 of the ResNet, float32"] == "90.00 %"
    assert [len(bars) for _, bars in precision.picture(rows)] == [2] * 8


@pytest.fixture
def small(monkeypatch):
    """The bundled models in place of those of ImageNet's size, which take minutes to make."""
    monkeypatch.setattr(engines, "workload", lambda _, precision: workload("embedded", precision))


@pytest.mark.parametrize("wanted", ["float32", "int8"])
def test_openvino_computes_the_served_model_for_one_client_and_for_several(small, wanted, monkeypatch):
    monkeypatch.setattr(engines, "WARM_UP_S", 0.0)
    for clients in (1, 4):
        assert min(timed(partial(engines.openvino, "ResNet-50", wanted), clients, 0.2, 2)) > 0


def test_clients_are_computed_at_most_one_on_each_core(monkeypatch):
    monkeypatch.setattr(engines, "WARM_UP_S", 0.0)
    monkeypatch.setattr(engines, "available_cpus", lambda: 2)
    started, inside, most = [], [], []

    def engine(threads, at_once):
        started.append((threads, at_once))

        def infer():
            inside.append(None)
            most.append(len(inside))
            time.sleep(0.001)
            inside.pop()

        return lambda: infer

    timed(engine, 5, 0.5, 2)
    assert started == [(2, 2)]
    assert max(most) <= 2


def sleeping(threads, at_once):
    return lambda: partial(time.sleep, 0.001 * threads)


def failing(threads, at_once):
    raise KeyError("no network")


def test_workers_begin_together_and_the_cause_of_a_failure_is_told():
    [first, second] = together([Worker(sleeping, 1), Worker(sleeping, 2)], 0.2)
    assert first["images_per_s"] > second["images_per_s"] > 0
    with pytest.raises(ScriptError, match="a process of an engine failed: KeyError"):
        together([Worker(sleeping, 1), Worker(failing, 1)], 0.2)


def test_a_time_in_which_nothing_ends_is_refused():
    with pytest.raises(ScriptError, match="no image was computed"):
        timed(lambda *_: lambda: lambda: None, 1, 0.0, 1)


# PyTorch's exporter warns of its own code.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_the_other_engines_compute_the_architecture_of_the_served_model(small):
    pytest.importorskip("torchvision", reason="PyTorch is large: make train")
    pytest.importorskip("onnxruntime")
    for engine in (engines.pytorch, engines.onnxruntime):
        infer = engine("ResNet-50", "float32", 1, 1)()
        assert np.asarray(infer()).reshape(-1).shape == (1000,)
