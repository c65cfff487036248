"""The servers of tests/server/shared, of which these tests ask some."""

from tests.server.shared.conftest import handle, server  # noqa: F401
