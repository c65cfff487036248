"""The servers that the tests of this folder share, and which tests ask which of them."""

import pytest

# In this order in every test, or pytest would start them anew for some.
SERVERS = [("separate", "direct"), ("inline", "direct"), ("separate", "handle")]


def only(count):
    """For tests that ask so many of the servers: by which edge separate nodes are called is all one to them."""
    return pytest.mark.parametrize("server", SERVERS[:count], ids="-".join, indirect=True, scope="package")
