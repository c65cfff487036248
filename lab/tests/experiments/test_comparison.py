"""Reported figures stand beside measured ones; a figure that was not measured is named."""

from lab.experiments.comparison import Here, text
from lab.reported import DOCUMENTS, Reported

INTEL = DOCUMENTS["Intel"]
RATE = Reported(INTEL, "Table 3", "rate", "images/s", 763, model="ResNet", hardware="one", experiment="precision")
TIME = Reported(INTEL, "Table 1", "time", "ms", 26.9, model="ResNet", hardware="two", experiment="precision")


def test_a_column_of_equal_cells_becomes_a_sentence():
    made = text([RATE, TIME], {"rate": Here(7, "seven"), "time": Here(1, "a ms")}, "cores")
    assert made.startswith("| reported by | figure | hardware | reported | here |\n")
    assert "| Intel, Table 3 | rate | one | 763 images/s | seven |\n" in made
    assert made.endswith("Every reported figure: model ResNet. Differences here: cores.\n")


def test_a_figure_that_was_not_measured_is_listed():
    made = text([RATE, TIME], {"rate": Here(7, "seven")}, "cores")
    assert "| Intel, Table 1 |" not in made
    assert made.endswith("Reported, and not measured here:\n\n- time: 26.9 ms\n")


def test_nothing_measured_is_no_table():
    assert text([RATE], {}, "cores") == ""
