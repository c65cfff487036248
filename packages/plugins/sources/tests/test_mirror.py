"""What every place must do, and what goes wrong at a website, whose answers a test can bend."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from deployments.contract.member import MemberInterface
from deployments.contract.preprocessing import Preprocessing
from deployments.members.openvino import OpenVino
from deployments.repository.address import Location, open_repository, parse_repository
from deployments.repository.errors import SourceError, Unreachable
from ensemble_sources import file_system, mirror
from ensemble_sources.mirror import Mirror
from graph.config import parse
from graph.signature import resolve_signatures
from tests.model_sources import opened, write
from tests.networks import CLASSES
from tests.server.server import eventually
from tests.unit.deployments.members.test_versioned import answer

AGREED = MemberInterface(Preprocessing((32, 32)), CLASSES)


def files(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def contents(cache):
    """The folders of what was fetched."""
    folder = cache / "content"
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.exists() else []


def test_what_is_asked_for_is_fetched_as_it_is(place, root, cache):
    write(root, 2)
    write(root, 1, name="other")
    place.upload()
    models = opened(place.location)
    assert models.versions("m") == [1, 2]
    assert models.versions("nothing") == []
    model = models.find("m")
    assert (model.name, model.version, model.labels) == ("m", 2, CLASSES)
    model.verify()
    assert files(model.folder) == files(root / "m" / "2")
    assert contents(cache) == [model.folder]
    assert models.find("m", 1).version == 1
    assert len(contents(cache)) == 2
    with pytest.raises(SourceError, match=r"has no version 3 at .*; it has \[1, 2\]"):
        models.find("m", 3)
    with pytest.raises(SourceError, match="no model 'nothing' at"):
        models.find("nothing")


def test_the_versions_that_were_looked_for_last_are_kept(place, root, cache, monkeypatch):
    monkeypatch.setattr(mirror, "MAX_KEPT", 2)
    for version in (2, 3):
        write(root, version)
    # The same content under another name.
    shutil.copytree(root / "m" / "2", root / "twin" / "2")
    place.upload()
    models = opened(place.location)
    second = models.find("m", 2).folder
    assert models.find("twin", 2).folder == second
    first = models.find("m", 1).folder
    # Looked for once more, so that it is the second that goes; but it is the twin's, too.
    models.find("m", 1)
    third = models.find("m", 3).folder
    assert sorted(link.name for link in (cache / "placed").glob("*/m/*")) == ["1", "3"]
    assert sorted(contents(cache)) == sorted([first, second, third])
    second = models.find("m", 2).folder
    assert sorted(link.name for link in (cache / "placed").glob("*/m/*")) == ["2", "3"]
    assert sorted(contents(cache)) == sorted([second, third])
    # What was removed is fetched again.
    models.find("m", 1).verify()


def test_a_version_without_metadata_is_not_there_yet(place, root):
    folder = write(root, 2)
    place.upload()
    models = opened(place.location)
    assert models.versions("m") == [1, 2]
    # As it is while it is being uploaded, or written by another tool.
    write(root, 3)
    for file in ("model.xml", "model.bin"):
        if place.site is None:
            place.put(f"m/3/{file}", (root / "m" / "3" / file).read_bytes())
    assert models.versions("m") == [1, 2]
    before = models.stamp("m", 2)
    (folder / "metadata.json").write_text(json.dumps({**json.loads((folder / "metadata.json").read_text()), "a": 1}))
    place.upload()
    assert models.versions("m") == [1, 2, 3]
    assert models.stamp("m", 2) != before


def test_what_does_not_match_is_not_placed_and_what_is_mended_is(place, root, cache):
    content = (root / "m" / "1" / "model.bin").read_bytes()
    place.put("m/1/model.bin", bytes(len(content)))
    models = opened(place.location)
    with pytest.raises(SourceError, match=r"m/1/model\.bin does not match the SHA-256 in metadata\.json; upload"):
        models.find("m")
    assert contents(cache) == []
    place.put("m/1/model.bin", content)
    models.find("m").verify()


def test_if_the_source_is_away_what_was_fetched_before_is_served(place, monkeypatch, caplog):
    kept = opened(place.location).find("m")
    away = opened(place.location)

    def list(name):
        raise Unreachable("nobody answers")

    monkeypatch.setattr(away, "list", list)
    assert away.versions("m") == [1]
    assert away.find("m") == kept
    assert "version 1 of 'm' was fetched before and is served" in caplog.text
    for name, version in (("m", 2), ("other", None)):
        with pytest.raises(Unreachable):
            away.find(name, version)


async def test_a_member_takes_a_new_version_from_there(place, root, monkeypatch):
    monkeypatch.setattr(Mirror, "poll_interval_s", 3600)
    node = OpenVino(name="m", version_policy="latest", threads=1).make(place.location, AGREED, 4)
    assert await answer(node) == (1, 1)
    folder = write(root, 2)
    content = (folder / "model.bin").read_bytes()
    place.upload()
    place.put("m/2/model.bin", bytes(len(content)))
    for _ in range(3):
        node.update()
    assert await answer(node) == (1, 1)
    assert node.refused == 1
    # Mended: other files, so it is tried again.
    place.put("m/2/model.bin", content)
    (folder / "metadata.json").write_text(json.dumps({**json.loads((folder / "metadata.json").read_text()), "a": 1}))
    place.upload()
    node.update()
    assert await answer(node) == (2, 2)


async def test_by_itself_it_notices_and_a_source_that_is_away_refuses_nothing(website, root, monkeypatch, caplog):
    monkeypatch.setattr(Mirror, "poll_interval_s", 0.01)
    node = OpenVino(name="m", version_policy="latest", threads=1).make(website.location, AGREED, 4)
    website.site.answers["/manifest.json"] = lambda handler: handler.send_error(503)
    assert eventually(lambda: "versions of 'm' that were fetched before: [1]" in caplog.text)
    write(root, 2)
    website.upload()
    website.site.answers.clear()
    assert eventually(lambda: node.version == 2)
    assert node.refused == 0
    assert await answer(node) == (2, 2)
    # The thread looks for as long as the member is remembered; the website ends before.
    node.update = lambda: None


async def test_a_torn_download_of_a_new_version_is_tried_again(website, root, monkeypatch):
    monkeypatch.setattr(Mirror, "poll_interval_s", 3600)
    node = OpenVino(name="m", version_policy="latest", threads=1).make(website.location, AGREED, 4)
    write(root, 2)
    website.upload()
    website.site.answers["/m/2/model.xml"] = torn
    node.update()
    assert (node.version, node.refused) == (1, 0)
    website.site.answers.clear()
    node.update()
    assert await answer(node) == (2, 2)


def torn(handler):
    """Less than was announced, and the connection ends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "9999")
    handler.end_headers()
    handler.wfile.write(b"<net")


def trickling(handler):
    """Bytes one by one, until nobody wants more."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(10**9))
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.02)


def said(content):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def led(to):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.end_headers()

    return answer


def status(code):
    return lambda handler: handler.send_error(code)


MANIFEST, WEIGHTS = "/manifest.json", "/m/1/model.bin"
BENT = {
    "torn": (WEIGHTS, torn, Unreachable, "m/1/model.bin"),
    "short": (WEIGHTS, said(b"short"), Unreachable, r"ended \d+ bytes early"),
    "long": (WEIGHTS, said(b"a" * 100_000), SourceError, r"longer than the \d+ bytes"),
    "gone": (WEIGHTS, status(404), SourceError, r"m/1/model\.bin is not there"),
    "forbidden": (WEIGHTS, status(403), SourceError, "must give models to everybody"),
    "failing": (WEIGHTS, status(500), Unreachable, "can't be read .*500"),
    "led away": (WEIGHTS, led("http://example.invalid/model.bin"), SourceError, "which is not https://"),
    "circle": (WEIGHTS, led(WEIGHTS), SourceError, "leads in circles"),
    "no manifest": (MANIFEST, status(404), SourceError, r"manifest\.json is not there"),
    "no json": (MANIFEST, said(b"<html>"), SourceError, r"make it with `ensemble manifest`"),
    "deep": (MANIFEST, said(b"[" * 100_000), SourceError, "is no manifest"),
    "other format": (MANIFEST, said(b'{"format": 2, "models": {}}'), SourceError, "is no manifest"),
    "endless": (MANIFEST, said(b" " * (4 * 1024 * 1024 + 1)), SourceError, "than the 4194304 bytes"),
}


@pytest.mark.parametrize("what", BENT)
def test_what_goes_wrong_is_told_and_leaves_nothing(website, cache, what):
    path, answer, error, told = BENT[what]
    website.site.answers[path] = answer
    with pytest.raises(SourceError, match=told) as caught:
        opened(website.location).find("m")
    assert type(caught.value) is error
    assert contents(cache) == []
    assert not [entry for entry in (cache / "content").glob(".*") if entry.is_dir()]


METADATA = {
    "escape": ({"../../escaped": "0" * 64}, "names '../../escaped', which is no file beside it"),
    "absolute": ({"/etc/passwd": "0" * 64}, "which is no file beside it"),
    "itself": ({"metadata.json": "0" * 64}, "which is no file beside it"),
    "missing": ({"model.xml": "0" * 64, "other.bin": "0" * 64}, r"m/1/other\.bin is missing"),
    "nothing": ({}, "SHA-256 of 0 files"),
    "list": ([], "no object with the SHA-256"),
    "many": ({f"file{index}": "0" * 64 for index in range(257)}, "SHA-256 of 257 files"),
}


@pytest.mark.parametrize("what", METADATA)
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_metadata_that_lies_is_refused(place, cache, what):
    digests, told = METADATA[what]
    place.put("m/1/metadata.json", json.dumps({"sha256": digests}).encode())
    with pytest.raises(SourceError, match=told):
        opened(place.location).find("m")
    assert contents(cache) == []


def test_sizes_are_bounded(website, monkeypatch):
    monkeypatch.setattr(mirror, "MAX_BYTES", 100)
    with pytest.raises(SourceError, match=r"a version has at most 100"):
        opened(website.location).find("m")
    assert WEIGHTS not in website.site.asked
    monkeypatch.setattr(mirror, "MAX_METADATA_BYTES", 10)
    with pytest.raises(SourceError, match="10 may be"):
        opened(website.location).find("m")


def test_what_is_there_is_not_fetched_again_unless_it_is_damaged(website):
    model = opened(website.location).find("m")
    assert website.site.asked.count(WEIGHTS) == 1
    assert opened(website.location).find("m") == model
    assert website.site.asked.count(WEIGHTS) == 1
    for number, name in enumerate(("model.bin", "metadata.json"), 2):
        file = model.folder / name
        content = file.read_bytes()
        file.write_bytes(b"")
        opened(website.location).find("m").verify()
        assert file.read_bytes() == content
        assert website.site.asked.count(WEIGHTS) == number


def test_who_come_at_once_fetch_once(website):
    found, begin = [], threading.Barrier(4)

    def find():
        models = opened(website.location)
        begin.wait()
        found.append(models.find("m"))

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert website.site.asked.count(WEIGHTS) == 1


@pytest.mark.parametrize("place", ["https"], indirect=True)
def test_a_certificate_that_is_not_trusted(place, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(SourceError, match="its certificate is not trusted; SSL_CERT_FILE may name"):
        opened(place.location).find("m")


@pytest.mark.parametrize("place", ["https"], indirect=True)
def test_from_https_nothing_leads_to_http_not_even_on_this_machine(place):
    place.site.answers[WEIGHTS] = led("http://127.0.0.1:1/model.bin")
    with pytest.raises(SourceError, match=r"leads to http://127\.0\.0\.1:1/model\.bin, which is not https://"):
        opened(place.location).find("m")


def test_a_cache_that_can_not_be_written(website, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SourceError, match="XDG_CACHE_HOME may name a folder with room"):
        opened(website.location).find("m")


@pytest.mark.parametrize("open_to_others", ["cache", "cache/ensemble-serving", "cache/ensemble-serving/models"])
def test_a_cache_that_others_can_change_is_not_trusted(website, tmp_path, cache, open_to_others):
    opened(website.location).find("m")
    (tmp_path / open_to_others).chmod(0o777)
    with pytest.raises(SourceError, match=f"other users can change {tmp_path / open_to_others}; XDG_CACHE_HOME may"):
        opened(website.location)


def test_a_file_that_comes_byte_by_byte_does_not_come_for_ever(website, monkeypatch):
    monkeypatch.setattr(file_system, "FETCHED_WITHIN_S", 0.2)
    website.site.answers[WEIGHTS] = trickling
    with pytest.raises(Unreachable, match=r"m/1/model\.bin did not answer in time"):
        opened(website.location).find("m")


def test_a_full_disk_is_not_taken_for_a_source_that_is_away(place, tmp_path):
    # A link, because a driver may remove what it could not write.
    full = tmp_path / "model.bin"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        opened(place.location).fetch("m/1/model.bin", full, 100_000_000)


def test_the_signature_of_an_address_is_not_told(website):
    website.site.answers[WEIGHTS] = led("/signed?X-Signature=secret")
    with pytest.raises(SourceError, match=r"m/1/model\.bin is not there") as caught:
        opened(website.location).find("m")
    assert "secret" not in str(caught.value)
    website.site.answers["/signed?X-Signature=secret"] = status(500)
    with pytest.raises(Unreachable, match=r"500.*\?…") as caught:
        opened(website.location).find("m")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "driver"), [("s3", "s3fs"), ("gs", "gcsfs.core"), ("az", "adlfs"), ("hf", "huggingface_hub")]
)
def test_without_its_driver_a_bucket_says_what_to_install(scheme, driver, monkeypatch):
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(SourceError, match=rf"pip install {driver.partition('.')[0]} "):
        opened(Location(f"{scheme}://bucket"))


@pytest.mark.parametrize("place", ["az"], indirect=True)
def test_what_azure_refuses_is_not_taken_for_a_failing_network(place, monkeypatch):
    connection = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection.replace("AccountKey=Eby8", "AccountKey=Abcd"))
    _refused(place.location.url, "is refused; are the credentials in the environment right?")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    _refused(place.location.url, "needs credentials in the environment")


@pytest.mark.parametrize("place", ["hf"], indirect=True)
def test_what_hugging_face_refuses_is_not_taken_for_a_failing_network(place):
    _refused("hf://nobody/bucket", "is refused; are the credentials in the environment right?")
    _refused("hf://owner/bucket@v9", "is not there; is the address right?")
    assert opened(parse_repository(str(place.location).replace("bucket", "bucket@main"))).find("m").version == 1


def _refused(address, message):
    """The error is one line and says that a retry is useless."""
    with pytest.raises(SourceError, match=message) as caught:
        opened(parse_repository(address)).find("m")
    assert type(caught.value) is SourceError
    assert "\n" not in str(caught.value)


def test_an_application_of_models_from_there(place, root, tmp_path):
    write(tmp_path / "folder", 4, name="here")
    members = [{"name": "m"}, {"name": "far", "model": f"{place.location}/m"}]
    config = parse(
        {
            "model_repository": str(place.location),
            "members": [*members, {"name": "here", "model": str(tmp_path / "folder" / "here")}],
        }
    )
    agreed = resolve_signatures(config)
    assert agreed.labels == CLASSES
    assert agreed.versions == {"m": 1, "far": 1, "here": 4}
    assert open_repository(config.model_repository) is open_repository(config.model_repository)


KILLED = """
import sys, time
from deployments.repository.address import open_repository, parse_repository
models = open_repository(parse_repository(sys.argv[1]))
def fetch(path, target, most):
    target.write_bytes(b"some")
    print(path, flush=True)
    time.sleep(600)
whole = models.fetch
models.fetch = lambda path, *more: (whole if path.endswith(".json") else fetch)(path, *more)
models.find("m", int(sys.argv[2]))
"""


def staged(cache):
    return [entry for entry in (cache / "content").glob(".*") if entry.is_dir()]


def test_what_a_killed_fetch_left_is_removed_and_what_a_live_one_has_is_not(website, root, cache):
    write(root, 2)
    website.upload()
    command = [sys.executable, "-c", KILLED, str(website.location)]
    with subprocess.Popen([*command, "1"], stdout=subprocess.PIPE, text=True) as fetching:
        try:
            assert fetching.stdout.readline().startswith("m/1/")
            [left] = staged(cache)
            # Another version, while the first is still being fetched.
            opened(website.location).find("m", 2)
            assert staged(cache) == [left]
        finally:
            fetching.kill()
    assert staged(cache) == [left]
    opened(website.location).find("m", 2)
    assert staged(cache) == []


def test_what_nobody_fetched_into_is_left_alone(website, cache, monkeypatch):
    opened(website.location).find("m")
    # One without a lock, one by another name, and one of another user.
    for name in (f".{'0' * 64}.partial", ".mine"):
        (cache / "content" / name).mkdir()
    opened(website.location).find("m")
    assert len(staged(cache)) == 2
    (cache / "content" / f".{'0' * 64}.lock").touch()
    with monkeypatch.context() as other:
        other.setattr("os.getuid", lambda: 4242)
        opened(website.location).find("m")
    assert len(staged(cache)) == 2
    opened(website.location).find("m")
    assert [entry.name for entry in staged(cache)] == [".mine"]
