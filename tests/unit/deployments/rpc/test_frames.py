"""Frames over a stream that is cut anywhere, and headers that are none."""

import asyncio
import socket
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.rpc import wire
from deployments.rpc.wire import INBOX, MAX_BODY, MAX_HEADER, Frames


class Receiver(Frames):
    def __init__(self):
        super().__init__()
        self.frames = []

    def received(self, kind, header, body):
        self.frames.append((kind, header, body.tobytes()))


class Transport:
    """Takes what is written, and knows whether it was ended."""

    def __init__(self):
        self.ended = False

    def get_extra_info(self, _):
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    def abort(self):
        self.ended = True


def feed(content, cuts):
    """What a receiver gets of a stream that comes in pieces."""
    frames, transport = Receiver(), Transport()
    frames.connection_made(transport)
    rest, sizes = memoryview(content), iter(cuts)
    while len(rest) and not transport.ended:
        buffer = frames.get_buffer(-1)
        size = min(len(rest), len(buffer), next(sizes, len(rest)) or 1)
        assert size > 0
        buffer[:size] = rest[:size]
        rest = rest[size:]
        frames.buffer_updated(size)
    return frames, transport


@given(
    st.integers(0, 255),
    st.binary(max_size=100),
    st.one_of(st.binary(max_size=100), st.integers(INBOX - 200, INBOX + 200).map(bytes)),
    st.lists(st.integers(1, 70_000), max_size=20),
)
def test_a_frame_is_the_same_however_it_is_cut(kind, header, body, cuts):
    content = wire.PREFIX.pack(kind, len(header), len(body)) + header + body
    receiver, transport = feed(content, cuts)
    assert receiver.frames == [(kind, header, body)]
    assert not transport.ended


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=10))
def test_any_bytes_are_frames_or_the_end(content, cuts):
    feed(content, cuts)


@pytest.mark.parametrize(("header", "body"), [(MAX_HEADER + 1, 0), (0, MAX_BODY + 1), (2**32 - 1, 2**64 - 1)])
def test_a_length_that_is_too_large_ends_the_connection(header, body):
    assert feed(wire.PREFIX.pack(0, header, body), [])[1].ended


def test_what_follows_a_frame_unasked_ends_the_connection():
    whole = wire.PREFIX.pack(0, 1, 1) + b"hb"
    assert feed(whole + whole, [])[1].ended


HEADERS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=10,
)
ARRAYS = st.fixed_dictionaries(
    {
        "type": st.just("array"),
        "dtype": st.sampled_from(["uint8", "float32", "object"]),
        "shape": st.lists(st.integers(-(2**62), 2**62), max_size=3),
    }
)
BLOBS = st.fixed_dictionaries({"type": st.just("blobs"), "lengths": st.lists(st.integers(-5, 2**62), max_size=3)})


@given(
    st.one_of(
        st.binary(max_size=100),
        HEADERS.map(msgspec.msgpack.encode),
        st.one_of(ARRAYS, BLOBS).map(lambda payload: msgspec.msgpack.encode([[], payload])),
    ),
    st.integers(0, 64),
)
def test_a_header_is_a_batch_or_a_value_error(header, size):
    try:
        batch = wire.decode(header, np.zeros(size, np.uint8))
    except (ValueError, msgspec.DecodeError):
        return
    assert isinstance(batch, Batch)


@given(st.binary(min_size=1), st.integers(0, 10**6), st.integers(0, 255))
def test_a_damaged_header_is_a_batch_or_a_value_error(blob, place, value):
    header, _ = wire.encode(Batch([blob], (Item(trace_parent="x"),)))
    damaged = bytearray(header)
    damaged[place % len(damaged)] = value
    try:
        wire.decode(bytes(damaged), np.frombuffer(blob + bytes(-len(blob) % wire.ALIGNMENT), np.uint8))
    except (ValueError, LookupError):
        return


async def test_the_other_end_of_a_real_socket_reads_what_was_written():
    receiver, done = Receiver(), asyncio.Event()
    receiver.received = lambda *frame: (receiver.frames.append(frame), done.set())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: receiver, path)
        _, ours = await loop.create_unix_connection(Receiver, path)
        ours.send(1, b"header", [b"abc", bytes(5), b"defghijkl", bytes(7)])
        await done.wait()
        ours.close()
        server.close()
    [(kind, header, body)] = receiver.frames
    assert (kind, header, body.tobytes()) == (1, b"header", b"abc" + bytes(5) + b"defghijkl" + bytes(7))
