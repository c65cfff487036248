"""The package of docs/extend.md: built as a wheel, installed beside the server, and served."""

import io
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.conftest import ROOT
from tests.networks import constant, store
from tests.server.server import Server, config, post

EXAMPLE = ROOT / "examples" / "extend"


def jpeg(level):
    """An image of one brightness."""
    Image.new("L", (32, 32), level).save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the package is installed in, as `pip install` does beside the server."""
    folder = tmp_path_factory.mktemp("extend")
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", folder / "site"]
    subprocess.run([*command, EXAMPLE], check=True)
    return folder / "site"


def test_a_package_of_ones_own_brings_members_a_combiner_a_repository_a_feature_and_a_protocol(installed, tmp_path):
    """Each is found by its entry point, or by an import string."""
    store(tmp_path, "stored", constant([0.51, 0.49]), version=3, classes=("dark", "light"))
    content = config(
        f"share://{tmp_path}",
        "separate",
        members=("first", "second", "stored"),
        combiner={"placement": "separate", "method": "mine.combiner:surest"},
        features={"unsure": {"below": 0.99}},
        protocols=["mine.protocol:Words"],
    )
    first, second, _ = content["applications"][0]["args"]["members"]
    for member, kind in ((first, "brightness"), (second, "mine.member:Brightness")):
        del member["threads"]
        member["kind"] = kind
    with Server(content, PYTHONPATH=os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])) as server:
        answer = post(server, jpeg(0), members="true").json()
        assert answer["label"] == "dark"
        assert answer["members"]["second"]["label"] == "dark"
        assert answer["model_versions"]["stored"] == 3
        assert post(server, jpeg(255)).json()["label"] == "light"
        counts = httpx.get(f"{server.url}/stats").json()["rollout"]["unsure"]
        assert counts == {"answers": 2, "unsure": 0}
        said = httpx.post(f"{server.url}/words", content=jpeg(255))
        assert (said.status_code, said.text) == (200, "it is light")
        wrong = httpx.post(f"{server.url}/words", content=b"no image")
        assert (wrong.status_code, wrong.json()[:7]) == (400, "sorry: ")
        unknown = httpx.get(f"{server.url}/words/other")
        assert (unknown.status_code, unknown.json()[:7]) == (404, "sorry: ")
        assert "/words" in httpx.get(f"{server.url}/openapi.json").json()["paths"]
