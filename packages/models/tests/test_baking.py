"""A temperature in a network; test_prepare.py has what is baked in besides."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from deployments.repository.network import load
from deployments.repository.repository import find
from ensemble_models.baking import TEMPERATURE, with_temperature, without_temperature
from tests.networks import constant, store


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
