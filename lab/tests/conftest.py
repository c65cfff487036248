"""Fixtures and settings of every test, for a folder outside tests/."""

from tests.conftest import repository  # noqa: F401
from tests.unit.scripts.conftest import draw  # noqa: F401
