"""Frames over a stream that is cut anywhere, and headers that are none."""

import asyncio
import socket
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.rpc import wire
from deployments.rpc.wire import HEAD, MAX_BYTES, Frames


class Receiver(Frames):
    def __init__(self):
        super().__init__()
        self.frames = []

    def received(self, kind, content):
        self.frames.append((kind, content.tobytes()))


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


@given(st.integers(0, 255), st.binary(max_size=100), st.integers(0, 70_000), st.lists(st.integers(1, 70_000)))
def test_a_frame_is_the_same_however_it_is_cut(kind, content, zeros, cuts):
    content += bytes(zeros)
    frame = HEAD.pack(kind, len(content)) + content
    receiver, transport = feed(frame + frame, cuts)
    assert receiver.frames == [(kind, content)] * 2
    assert not transport.ended


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=10))
def test_any_bytes_are_frames_or_the_end(content, cuts):
    feed(content, cuts)


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 2**64 - 1])
def test_a_length_that_is_too_large_ends_the_connection(size):
    assert feed(HEAD.pack(0, size), [])[1].ended


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
        "memory": st.binary(max_size=64),
    }
)
BLOBS = st.fixed_dictionaries({"type": st.just("blobs"), "parts": st.lists(st.binary(max_size=9), max_size=3)})


@given(
    st.one_of(
        st.binary(max_size=100),
        HEADERS.map(msgspec.msgpack.encode),
        st.one_of(ARRAYS, BLOBS).map(lambda payload: msgspec.msgpack.encode([[], payload])),
    )
)
def test_any_content_is_a_batch_or_a_value_error(content):
    try:
        batch = wire.decode(memoryview(content))
    except (ValueError, msgspec.DecodeError):
        return
    assert isinstance(batch, Batch)


@given(st.binary(min_size=1), st.integers(0, 10**6), st.integers(0, 255))
def test_a_damaged_batch_is_a_batch_or_a_value_error(blob, place, value):
    damaged = bytearray(wire.encode(Batch([blob], (Item(trace_parent="x"),))))
    damaged[place % len(damaged)] = value
    try:
        wire.decode(memoryview(damaged))
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
        ours.send(1, b"abc" + bytes(100_000))
        await done.wait()
        ours.close()
        server.close()
    [(kind, content)] = receiver.frames
    assert (kind, content.tobytes()) == (1, b"abc" + bytes(100_000))
