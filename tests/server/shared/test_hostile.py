"""A few hundred of the inputs that `ensemble faults hostile` sends by the thousand."""

import asyncio

import httpx
import pytest

from lab.faults.hostile.corpus import made
from lab.faults.hostile.sending import Sender
from lab.faults.hostile.siege import WellMeaning, besiege
from tests import pictures

SEED, INPUTS = 20, 250
# gRPC answers them before they reach ours: see docs/reliability.md.
OTHERS = ("gRPC messages: another method", "gRPC messages: random bytes", "gRPC messages: damaged")


@pytest.fixture(scope="module")
def siege(server):
    address = httpx.URL(server.url)
    well_meaning = WellMeaning(server.url, pictures.jpeg())
    sender = Sender(address.host, address.port, server.grpc_port)
    inputs = ((number, made(SEED, number)) for number in range(INPUTS))
    return asyncio.run(besiege(sender, inputs, well_meaning))


def test_hostile_input_is_refused_and_others_are_answered(siege):
    assert sum(verdict.statuses.total() for verdict in siege.verdicts.values()) == INPUTS
    assert siege.well_meant > 1
    assert [failure for failure in siege.failures if not failure.startswith(OTHERS)] == []
