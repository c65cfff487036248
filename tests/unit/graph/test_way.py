import pytest

from tests.conftest import ROOT
from tests.way import way

# The most functions, files and changes of top package that a JPEG may pass.
MOST = {"inline": (80, 20, 0), "separate": (100, 25, 0)}


@pytest.mark.parametrize("placement", MOST)
async def test_one_jpegs_way_through_the_code_stays_short(placement):
    """Who adds to the way sees it here: `python -m tests.way` prints every step."""
    found = await way((ROOT / "tests" / "cat.jpg").read_bytes(), placement)
    functions, files, crossings = MOST[placement]
    assert found.functions <= functions
    assert found.files <= files
    assert found.crossings <= crossings
    # What nobody asks for does not run, and an image's markers are read once.
    assert not [name for file, name in found.calls if file.endswith("cpu_accounting.py")]
    assert [name for _, name in found.calls].count("read_jpeg") == 1
