"""The servers that the tests of this folder share, and which tests ask which of them."""

import pytest

# In this order in every test, or pytest would start them anew for some.
SERVERS = [("separate", "direct", "direct"), ("inline", "direct", "direct"), ("separate", "handle", "serve")]


def only(count):
    """For tests that ask so many of the servers: how separate nodes are called, and who is in front, is one to them."""
    return pytest.mark.parametrize("server", SERVERS[:count], ids="-".join, indirect=True, scope="package")
