import asyncio
import gc
import json
import weakref

import numpy as np
import pytest

from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberInterface
from deployments.contract.preprocessing import Preprocessing
from deployments.members.openvino import OpenVino
from deployments.members.versioned import VersionSettings
from deployments.repository.errors import Unreachable
from deployments.repository.repository import Folder
from ensemble_models.writing import write_metadata
from tests import batches
from tests.batches import errors
from tests.networks import CLASSES, constant, one_hot, store
from tests.server.server import eventually

AGREED = MemberInterface(Preprocessing((32, 32)), CLASSES)
PIXELS = np.zeros((3, 32, 32, 3), np.uint8)


def member(repository, policy="latest", **config):
    made = OpenVino(name="m", version_policy=policy, threads=1, **config).make(repository, AGREED, 4)
    return made


def put(repository, version, winner=None, **more):
    return store(repository, "m", constant(one_hot(version if winner is None else winner)), version, **more)


async def answer(node):
    """The version and the class of an answer."""
    given = await node(batches.batch(PIXELS))
    assert not errors(given)
    return given.items[0].versions["m"], int(given.payload[0].argmax())


@pytest.fixture(autouse=True)
def only_when_asked(monkeypatch):
    monkeypatch.setattr(Folder, "poll_interval_s", 3600)


async def test_a_new_version_takes_the_place_of_the_old_one_which_is_freed(tmp_path):
    put(tmp_path, 1)
    node = member(tmp_path)
    assert await answer(node) == (1, 1)
    old = weakref.ref(node._serving.loaded)
    put(tmp_path, 2)
    # It is seen, and once it has stayed as it is, loaded.
    node.update()
    assert await answer(node) == (1, 1)
    node.update()
    assert await answer(node) == (2, 2)
    assert node.version == 2
    gc.collect()
    assert old() is None


async def test_by_itself_it_notices(tmp_path, monkeypatch):
    monkeypatch.setattr(Folder, "poll_interval_s", 0.01)
    put(tmp_path, 1)
    node = member(tmp_path)
    put(tmp_path, 2)
    assert eventually(lambda: node.version == 2)
    assert await answer(node) == (2, 2)


async def test_batches_of_the_old_version_end_and_every_answer_says_which_made_it(tmp_path):
    put(tmp_path, 1)
    node = member(tmp_path)
    seen = set()
    running = True

    async def ask():
        while running:
            version, winner = await answer(node)
            assert version == winner
            seen.add(version)

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    for version in (2, 3, 4):
        put(tmp_path, version)
        await asyncio.to_thread(node.update, settled=True)
        while version not in seen:
            await asyncio.sleep(0.001)
    running = False
    await asyncio.gather(*asking)
    assert seen == {1, 2, 3, 4}


def other_metadata(folder, **changes):
    metadata = json.loads((folder / "metadata.json").read_text())
    write_metadata(folder, {**metadata, **changes})


def latin(folder):
    (folder / "metadata.json").unlink()
    (folder / "labels.txt").write_bytes("\n".join([*CLASSES[:-1], "Bär"]).encode("latin-1"))


BAD = {
    "classes": lambda root: store(root, "m", constant([0.5, 0.5]), 2, ("a", "b")),
    "labels": lambda root: put(root, 2, classes=[*CLASSES[:-1], "other"]),
    "size": lambda root: store(root, "m", constant(one_hot(2), size=48), 2),
    "resizing": lambda root: put(root, 2, input={"resize": "stretch"}),
    "metadata": lambda root: put(root, 2, input={"resize": "shear"}),
    "damage": lambda root: (put(root, 2) / "model.bin").write_bytes(b"\0" * 999),
    "classes that are no list": lambda root: other_metadata(put(root, 2), classes=7),
    "digests that are no object": lambda root: (put(root, 2) / "metadata.json").write_text('{"sha256": ["m"]}'),
    "labels that are not UTF-8": lambda root: latin(put(root, 2)),
    "no model": lambda root: (put(root, 2) / "model.xml").unlink(),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_version_is_refused_once_and_the_old_one_goes_on(tmp_path, caplog, what):
    put(tmp_path, 1)
    node = member(tmp_path)
    BAD[what](tmp_path)
    for _ in range(4):
        node.update()
    assert await answer(node) == (1, 1)
    assert node.refused == 1
    assert "'m': version 2 is refused" in caplog.text
    # A better one is not held up by it.
    put(tmp_path, 3)
    node.update(settled=True)
    assert await answer(node) == (3, 3)


async def test_a_version_whose_metadata_come_late_waits_for_them(tmp_path, caplog):
    put(tmp_path, 1)
    node = member(tmp_path)
    folder = put(tmp_path, 2)
    late = (folder / "metadata.json").read_text()
    (folder / "metadata.json").unlink()
    for _ in range(3):
        node.update()
    assert await answer(node) == (1, 1)
    assert "version 2 is refused, the current one stays in service: it has no metadata.json" in caplog.text
    (folder / "metadata.json").write_text(late)
    for _ in range(2):
        node.update()
    assert await answer(node) == (2, 2)


@pytest.mark.parametrize("policy", ["latest", "fixed"])
async def test_files_of_the_version_in_service_that_change_are_reported_once(tmp_path, caplog, policy):
    folder = put(tmp_path, 1)
    node = member(tmp_path, policy)
    node.update()
    other_metadata(folder, classes=[*CLASSES[1:], CLASSES[0]])
    for _ in range(3):
        node.update()
    assert await answer(node) == (1, 1)
    assert caplog.text.count("files of version 1 changed, and it answers as it was loaded") == 1


async def test_a_refused_version_that_is_mended_is_taken(tmp_path):
    put(tmp_path, 1)
    node = member(tmp_path)
    folder = put(tmp_path, 2)
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(b"torn")
    node.update(settled=True)
    assert node.refused == 1
    (folder / "model.bin").write_bytes(content)
    node.update(settled=True)
    assert await answer(node) == (2, 2)


@pytest.mark.parametrize("policy", ["latest", "fixed"])
async def test_a_refused_version_that_the_settings_name_is_taken_once_it_is_mended(tmp_path, monkeypatch, policy):
    monkeypatch.setattr(Folder, "poll_interval_s", 0.01)
    put(tmp_path, 1)
    node = member(tmp_path, policy)
    folder = put(tmp_path, 2)
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(b"torn")
    node.settings = VersionSettings(version=2)
    assert eventually(lambda: node.refused)
    (folder / "model.bin").write_bytes(content)
    assert eventually(lambda: node.version == 2)


async def test_a_bad_highest_version_does_not_keep_a_new_replica_from_starting(tmp_path):
    put(tmp_path, 1)
    BAD["damage"](tmp_path)
    node = member(tmp_path)
    assert await answer(node) == (1, 1)
    assert node.refused == 1


async def test_a_version_that_goes_is_served_on(tmp_path):
    put(tmp_path, 1)
    folder = put(tmp_path, 2)
    node = member(tmp_path)
    folder.rename(tmp_path / "elsewhere")
    node.update(settled=True)
    assert await answer(node) == (2, 2)


@pytest.mark.parametrize("policy", ["latest", "fixed"])
async def test_the_settings_name_a_version(tmp_path, policy):
    for version in (1, 2):
        put(tmp_path, version)
    node = member(tmp_path, policy)
    assert await answer(node) == (2, 2)
    for wanted, expected in ((1, 1), (None, 2)):
        node.settings = VersionSettings(version=wanted)
        assert eventually(lambda: node.version == expected)  # noqa: B023
        assert await answer(node) == (expected, expected)
    with pytest.raises(ConfigurationError, match="has no version 7"):
        node.check(VersionSettings(version=7))


async def test_a_wanted_version_that_can_not_be_fetched_is_tried_again(tmp_path, monkeypatch):
    for version in (1, 2):
        put(tmp_path, version)
    # As a repository at an address.
    monkeypatch.setattr(Folder, "poll_interval_s", 0.01)
    monkeypatch.setattr(Folder, "is_atomic", True)
    node, find, tries = member(tmp_path, "fixed"), Folder.find, []

    def unreachable_at_first(self, name, version):
        tries.append(version)
        if len(tries) < 3:
            raise Unreachable("no answer")
        return find(self, name, version)

    monkeypatch.setattr(Folder, "find", unreachable_at_first)
    node.settings = VersionSettings(version=1)
    assert eventually(lambda: node.version == 1)
    assert tries == [1, 1, 1]


async def test_without_the_policy_a_new_version_is_left_alone(tmp_path):
    put(tmp_path, 1)
    node = member(tmp_path, "fixed")
    put(tmp_path, 2)
    node.update(settled=True)
    assert await answer(node) == (1, 1)


def test_a_version_and_the_latest_exclude_each_other():
    with pytest.raises(ValueError, match="remove one of them"):
        OpenVino(name="m", version=1, version_policy="latest")
