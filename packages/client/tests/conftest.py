"""Settings of every test, for a folder outside tests/."""

import tests.conftest  # noqa: F401
