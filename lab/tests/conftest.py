"""Fixtures and settings of every test, for a folder outside tests/."""

from packages.models.tests.conftest import draw  # noqa: F401
from tests.conftest import repository  # noqa: F401
