import subprocess
import sys

import msgspec
import pytest

from deployments.repository.address import Location
from deployments.repository.errors import ModelError, SourceError, Unreachable
from ensemble_models import manifest
from ensemble_sources.website import Website
from tests.model_sources import opened, write


def test_a_manifest_of_another_digest_is_refused(website, root):
    pinned = Location(website.location.url, manifest.write(root))
    assert opened(pinned).find("m").version == 1
    write(root, 2)
    digest = manifest.write(root)
    with pytest.raises(SourceError, match=f"has the SHA-256 {digest}, the configuration wants"):
        opened(pinned).find("m")


def test_what_was_fetched_by_another_manifest_is_not_served_if_the_website_is_away(website, root):
    pinned = Location(website.location.url, manifest.write(root))
    assert opened(website.location).find("m").version == 1
    website.site.answers["/manifest.json"] = lambda handler: handler.send_error(503)
    with pytest.raises(Unreachable):
        opened(pinned).find("m")
    website.site.answers.clear()
    kept = opened(pinned).find("m")
    website.site.answers["/manifest.json"] = lambda handler: handler.send_error(503)
    assert opened(pinned).find("m") == kept


def test_files_and_manifest_must_belong_together(website, root):
    metadata = root / "m" / "1" / "metadata.json"
    content = metadata.read_text()
    metadata.write_text(content.replace('"version": 1', '"version": 7'))
    with pytest.raises(SourceError, match=r"metadata\.json does not match the manifest"):
        opened(website.location).find("m")


def test_it_is_not_written_of_what_can_not_be_verified(root, tmp_path):
    with pytest.raises(ModelError, match="holds no models"):
        manifest.write(tmp_path / "nothing")
    (root / "m" / "1" / "model.bin").write_bytes(b"torn")
    with pytest.raises(ModelError, match="does not match the SHA-256"):
        manifest.write(root)
    (root / "m" / "1" / "metadata.json").unlink()
    with pytest.raises(ModelError, match="bring the model in by `prepare`"):
        manifest.write(root)
    assert not (root / "manifest.json").exists()


def test_the_command_says_how_it_is_served(root):
    done = subprocess.run([sys.executable, "-m", manifest.__name__, root], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"https://...#sha256={manifest.write(root)}" in done.stdout
    done = subprocess.run([sys.executable, "-m", manifest.__name__, root / "m"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_what_is_named_like_no_version_is_left_alone(monkeypatch):
    content = msgspec.json.encode({"models": {"m": {"1" * 5000: {}, "01": {}, "2": {}}}})
    monkeypatch.setattr(Website, "read", lambda *_: content)
    assert list(Website(Location("https://models.test")).list("m")) == [2]
