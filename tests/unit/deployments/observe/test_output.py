"""The files behind a replica's standard streams stay small, and keep their last lines."""

import os

import pytest

from deployments.observe import output


@pytest.fixture
def stderr(tmp_path, monkeypatch):
    """A file in the place of standard error, opened as Ray opens it."""
    descriptor = os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    monkeypatch.setattr(output, "STANDARD", (descriptor,))
    yield descriptor
    os.close(descriptor)


def test_the_file_of_standard_error_is_emptied_once_it_is_large(tmp_path, stderr):
    file = tmp_path / "err"
    os.write(stderr, b"early\n" + b"Corrupt JPEG data\n" * 1000)
    output.keep_small()
    assert file.read_bytes().startswith(b"early")
    for _ in range(50):
        os.write(stderr, b"Corrupt JPEG data\n" * 1000)
        output.keep_small()
        assert file.stat().st_size <= output.MOST_BYTES + 18_000
    os.write(stderr, b"terminate called\n")
    output.keep_small()
    assert b"\0" not in file.read_bytes()
    assert file.read_bytes().endswith(b"terminate called\n")


def test_a_terminal_or_a_pipe_is_left_alone(tmp_path, monkeypatch):
    reads, writes = os.pipe()
    monkeypatch.setattr(output, "STANDARD", (writes,))
    os.write(writes, b"a line\n")
    output.keep_small()
    assert os.read(reads, 100) == b"a line\n"
    os.close(reads)
    os.close(writes)
