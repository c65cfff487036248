from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from deployments.repository.errors import ModelError
from deployments.repository.network import TEMPERATURE, class_count, load, with_temperature, without_temperature
from deployments.repository.repository import find
from tests.networks import brightness, constant, store


def test_damaged_weights_are_refused(tmp_path):
    folder = store(tmp_path, "m", brightness())
    (folder / "model.bin").write_bytes(b"\0" * (folder / "model.bin").stat().st_size)
    with pytest.raises(ModelError, match=r"model\.bin does not match"):
        load(find(tmp_path, "m"))


def test_what_is_no_classifier_is_refused(tmp_path):
    image = op.parameter([-1, 32, 32, 3], np.uint8)
    store(tmp_path, "m", ov.Model([op.convert(image, "f32")], [image], "m"))
    with pytest.raises(ModelError, match="a member answers"):
        load(find(tmp_path, "m"))


def test_an_unreadable_file_is_refused(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="can't read"):
        load(find(tmp_path, "m"))


def test_no_file_of_a_served_model_is_mapped(tmp_path):
    folder = store(tmp_path, "m", brightness())
    network = load(find(tmp_path, "m"))
    compiled = ov.Core().compile_model(network, "CPU")
    assert str(folder) not in Path("/proc/self/maps").read_text()
    # What is written in their place meanwhile changes nothing.
    (folder / "model.bin").write_bytes(b"")
    assert compiled(np.full((1, 32, 32, 3), 20, np.uint8))[0].argmax() == 0


@pytest.mark.parametrize(("behind", "refused"), [((1, 1), False), ((1,), False), ((2, 1), True), ((1, 2), True)])
def test_only_ones_behind_the_classes_are_dropped(tmp_path, behind, refused):
    image = op.parameter([-1, 32, 32, 3], np.uint8)
    mean = op.reduce_mean(op.convert(image, "f32"), np.array([1, 2]), False)
    scores = op.reshape(op.concat([mean] * int(np.prod(behind)), 1), np.array([-1, 3, *behind]), False)
    scores.output(0).get_tensor().set_names({"scores"})
    store(tmp_path, "m", ov.Model([scores], [image], "m"), classes=("a", "b", "c"))
    if refused:
        with pytest.raises(ModelError, match="a member answers"):
            load(find(tmp_path, "m"))
        return
    network = load(find(tmp_path, "m"))
    assert class_count(network) == 3
    assert network.output(0).get_names() == {"scores"}


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_a_temperature_changes_probabilities_and_not_their_order(tmp_path, temperature):
    own = np.array([0.7, 0.2, 0.1, 0], np.float32)
    store(tmp_path, "m", with_temperature(constant(own), temperature), classes="abcd")
    network, pixels = load(find(tmp_path, "m")), np.zeros((2, 32, 32, 3), np.uint8)
    raised = own ** (1 / temperature)
    assert ov.compile_model(network, "CPU")(pixels)[0] == pytest.approx(np.stack([raised / raised.sum()] * 2), abs=1e-6)
    assert ov.compile_model(without_temperature(network), "CPU")(pixels)[0] == pytest.approx(np.stack([own] * 2))


@pytest.mark.parametrize("precision", ["f16", "f64"])
def test_probabilities_of_another_precision_get_a_temperature_too(precision):
    network = constant(np.array([0.7, 0.3], np.float32))
    converted = op.convert(network.get_results()[0].input_value(0), precision)
    network.get_results()[0].input(0).replace_source_output(converted.output(0))
    compiled = ov.compile_model(with_temperature(network, 2.0), "CPU")
    raised = np.sqrt([0.7, 0.3])
    assert compiled(np.zeros((1, 32, 32, 3), np.uint8))[0][0] == pytest.approx(raised / raised.sum(), abs=1e-3)


def test_an_operation_of_the_same_name_is_no_temperature():
    pixels = op.parameter([-1, 4], np.float32)
    named = op.maximum(pixels, np.float32(0.5), name=TEMPERATURE)
    network = without_temperature(ov.Model([op.softmax(named, axis=1)], [pixels]))
    assert ov.compile_model(network, "CPU")(np.zeros((1, 4), np.float32))[0] == pytest.approx(0.25)


def test_why_openvino_reads_no_model_is_in_one_line(tmp_path):
    folder = store(tmp_path, "m", constant([0.5, 0.5]), classes="ab")
    (folder / "metadata.json").unlink()
    (folder / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"^OpenVINO can't read \S+/model.xml: Incorrect weights in bin file!$"):
        load(find(tmp_path, "m"))
    (folder / "model.xml").write_text("no model")
    with pytest.raises(ModelError, match=r"^OpenVINO can't read \S+/model.xml: Unable to read the model: .*$"):
        load(find(tmp_path, "m"))
