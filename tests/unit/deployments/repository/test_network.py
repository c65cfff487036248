from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from deployments.repository.errors import ModelError
from deployments.repository.network import class_count, load
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
    with pytest.raises(ModelError, match=r"can't read .*: .*model") as caught:
        load(find(tmp_path, "m"))
    # The reason, and not where in OpenVINO's code it arose.
    assert ".cpp" not in str(caught.value)


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


def test_why_openvino_reads_no_model_is_in_one_line(tmp_path):
    folder = store(tmp_path, "m", constant([0.5, 0.5]), classes="ab")
    (folder / "metadata.json").unlink()
    (folder / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"^OpenVINO can't read \S+/model.xml: Incorrect weights in bin file!$"):
        load(find(tmp_path, "m"))
    (folder / "model.xml").write_text("no model")
    with pytest.raises(ModelError, match=r"^OpenVINO can't read \S+/model.xml: Unable to read the model: .*$"):
        load(find(tmp_path, "m"))
