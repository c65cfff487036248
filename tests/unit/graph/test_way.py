from tests.conftest import ROOT
from tests.way import way


async def test_one_jpegs_way_through_the_code_stays_short():
    """Who adds to the way sees it here: `python -m tests.way` prints every step."""
    found = await way((ROOT / "tests" / "cat.jpg").read_bytes())
    assert found.functions <= 85
    assert found.files <= 22
    assert found.crossings <= 12
    # What nobody asks for does not run, and an image's markers are read once.
    assert not [name for file, name in found.calls if file.endswith("cpu_accounting.py")]
    assert [name for _, name in found.calls].count("read_jpeg") == 1
