import errno
import os
from pathlib import Path

import pytest

from deployments.contract.errors import InvalidParameter, NotFound
from ensemble_interop.shared_memory.regions import MOST_REGIONS, Place, Region, Regions


@pytest.fixture
def key():
    path = Path(f"/dev/shm/es-unit-{os.getpid()}")
    path.write_bytes(bytes(range(100)))
    yield path.name
    path.unlink()


def regions(folder, prefix="es-unit"):
    return Regions(lambda: folder, lambda: prefix)


def test_a_registration_reaches_others_and_unregistering_leaves_nothing(tmp_path, key):
    """Two ingress replicas have the folder in common, and nothing else."""
    one, other = regions(tmp_path / "r"), regions(tmp_path / "r")
    one.register(Region("a", key, 10, 50))
    assert other.listed() == [Region("a", key, 10, 50)]
    assert other.read(Place("a", 5, 2), 2**80) == bytes(range(12, 17))
    other.write(Place("a", 3, 47), b"xyz")
    assert one.read(Place("a", 3, 47), 2**80) == b"xyz"
    with pytest.raises(InvalidParameter, match="registered already"):
        other.register(Region("a", key, 0, 1))
    other.unregister("a")
    with pytest.raises(NotFound):
        one.read(Place("a", 1, 0), 2**80)
    assert os.listdir(tmp_path / "r") == []


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (-1, 0), (51, 0), (1, 50), (1, -1), (2**70, 0)])
def test_a_part_outside_of_the_region_is_refused(tmp_path, key, size, offset):
    here = regions(tmp_path / "r")
    here.register(Region("a", key, 10, 50))
    with pytest.raises(InvalidParameter):
        here.read(Place("a", size, offset), 2**80)
    with pytest.raises(InvalidParameter):
        here.write(Place("a", size, offset), b"")


def test_an_output_that_does_not_fit_is_refused(tmp_path, key):
    here = regions(tmp_path / "r")
    here.register(Region("a", key, 0, 50))
    with pytest.raises(InvalidParameter, match="has 3 bytes"):
        here.write(Place("a", 2, 0), b"xyz")


def test_a_device_is_no_shared_memory(tmp_path):
    fifo = Path(f"/dev/shm/es-unit-fifo-{os.getpid()}")
    os.mkfifo(fifo)
    try:
        with pytest.raises(InvalidParameter, match="names no shared memory"):
            regions(tmp_path / "r").register(Region("a", fifo.name, 0, 1))
    finally:
        fifo.unlink()


def test_another_prefix_ends_what_is_registered(tmp_path, key):
    regions(tmp_path / "r").register(Region("a", key, 0, 1))
    with pytest.raises(InvalidParameter):
        regions(tmp_path / "r", "other").read(Place("a", 1, 0), 2**80)
    with pytest.raises(NotFound, match="is off"):
        regions(tmp_path / "r", None).read(Place("a", 1, 0), 2**80)


def test_there_are_only_so_many(tmp_path, key):
    here = regions(tmp_path / "r")
    here.register(Region("a", key, 0, 1))
    for number in range(MOST_REGIONS):
        (tmp_path / "r" / f"{number:x}").touch()
    with pytest.raises(InvalidParameter, match="unregister some"):
        here.register(Region("b", key, 0, 1))


def test_an_output_that_is_written_in_parts_is_written_whole(tmp_path, key, monkeypatch):
    here, write = regions(tmp_path / "r"), os.pwrite
    here.register(Region("a", key, 10, 50))
    monkeypatch.setattr(os, "pwrite", lambda file, content, start: write(file, content[:7], start))
    here.write(Place("a", 20, 5), bytes(range(100, 120)))
    monkeypatch.undo()
    assert here.read(Place("a", 30, 0), 2**80) == bytes(range(10, 15)) + bytes(range(100, 120)) + bytes(range(35, 40))


@pytest.mark.parametrize("ends", ["with nothing", "with an error"])
def test_an_output_that_can_not_be_written_whole_is_no_success(tmp_path, key, monkeypatch, ends):
    """As where /dev/shm is full: a part is written, then nothing."""
    here, write, calls = regions(tmp_path / "r"), os.pwrite, []
    here.register(Region("a", key, 0, 50))

    def full(file, content, start):
        calls.append(start)
        if len(calls) == 1:
            return write(file, content[:7], start)
        if ends == "with nothing":
            return 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InvalidParameter, match="13 of 20 bytes can't be written into the region 'a': No space left"):
        here.write(Place("a", 20, 0), bytes(20))
    assert calls == [0, 7]


@pytest.mark.parametrize("level", ["a", "a/r"])
def test_a_folder_that_others_can_enter_is_not_used(tmp_path, key, level):
    """In /tmp another user may have made it first."""
    (tmp_path / "a" / "r").mkdir(parents=True)
    for each in ("a", "a/r"):
        (tmp_path / each).chmod(0o755 if each == level else 0o700)
    here = regions(tmp_path / "a" / "r")
    for ask in (lambda: here.register(Region("a", key, 0, 50)), here.listed, here.unregister):
        with pytest.raises(NotFound, match="not a folder of the server's user alone"):
            ask()
