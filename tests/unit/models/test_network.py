from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from models.errors import ModelError
from models.network import load
from models.repository import find
from tests.networks import brightness, store


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
