"""New versions of models appear while the server is under load: nothing is lost, and answers say who made them."""

import pytest

from ensemble_models import manifest
from tests.levels import level
from tests.model_sources import Site
from tests.networks import constant, one_hot, store
from tests.server.load import Load
from tests.server.server import Server, config, eventually, post, scrape


def put(repository, name, version, **more):
    return store(repository, name, constant(one_hot(version)), version, **more)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("versions")
    for name in ("apart", "inside"):
        put(root, name, 1)
    return root


@pytest.fixture(scope="module")
def website(tmp_path_factory):
    """A repository that a website gives."""
    root = tmp_path_factory.mktemp("website")
    put(root, "far", 1)
    manifest.write(root)
    with Site(root) as site:
        yield site


@pytest.fixture(scope="module")
def server(repository, website, tmp_path_factory):
    """Two members that take the latest version, one a deployment of its own, the other inline; one from a website."""
    content = config(repository, "separate", members=("apart", "inside", "far"))
    application = content["applications"][0]
    for member in application["args"]["members"][:2]:
        member["version_policy"] = "latest"
    application["args"]["members"][1]["placement"] = "inline"
    application["args"]["members"][2]["model"] = f"{website.url}/far"
    application["deployments"] = [each for each in application["deployments"] if each["name"] != "inside"]
    with Server(content, XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache"))) as running:
        yield running


def served(server):
    """The versions of an answer; each model's only class is its version's number."""
    answer = post(server, level(10), members="true").json()
    assert {name: vote["index"] for name, vote in answer["members"].items()} == answer["model_versions"]
    return answer["model_versions"]


def refused(server):
    return sum(value for _, value in scrape(server, "ray_ensemble_model_refused_total"))


def test_new_versions_are_taken_under_load_and_bad_ones_are_not(server, repository, website):
    assert served(server) == {"apart": 1, "inside": 1, "far": 1}
    with Load(server) as load:
        put(repository, "apart", 2)
        put(repository, "inside", 2)
        assert eventually(lambda: served(server) == {"apart": 2, "inside": 2, "far": 1}, 60)
        for name in ("apart", "inside"):
            (put(repository, name, 3) / "model.bin").write_bytes(b"torn")
        assert eventually(lambda: refused(server) == 2, 60)
        assert served(server) == {"apart": 2, "inside": 2, "far": 1}
        server.reconfigure({"version": 1}, "apart")
        assert eventually(lambda: served(server) == {"apart": 1, "inside": 2, "far": 1}, 60)
        server.reconfigure({"nodes": {"inside": {"version": 1}}})
        # The other one's settings are back to the start, and its policy takes the highest that can be served.
        assert eventually(lambda: served(server) == {"apart": 2, "inside": 1, "far": 1}, 60)
        put(website.root, "far", 2)
        manifest.write(website.root)
        server.reconfigure({"version": 2}, "far")
        assert eventually(lambda: served(server) == {"apart": 2, "inside": 2, "far": 2}, 60)
    assert set(load.statuses) == {200}
    assert not load.missing
