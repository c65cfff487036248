"""Names that users choose, not ASCII or a module's of ours: it starts, answers and counts; nothing is counted twice."""

from urllib.parse import unquote

import httpx
import pytest

from tests import pictures
from tests.levels import level
from tests.networks import brightness, constant, one_hot, store
from tests.server.server import Server, config, eventually, post, scrape

CLASSES = ("猫", "Ærø", "kätzchen", "50 %", "two\nlines", "кот", "🐱", "cat")
# As answers have them.
NAMES = tuple(name.replace("\n", " ") for name in CLASSES)
MEMBERS = ("first", "second")
# In the middle of a step of brightness, and between two of them.
SURE, UNSURE = 16, 32


# Of each the user's is another: packages of this project, libraries, and Python's own.
OTHERS = ("models/__init__.py", "graph.py", "scripts/__init__.py", "deployments.py", "ray.py", "numpy.py", "queue.py")
OWN_BUILD = """
import helper
from graph.app import build as ours

def build(args):
    return ours({**args, **helper.MORE})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Every folder and class has such a name; members, models, keys and applications are refused with one.

    Of the modules in the folder, only `mine` and `helper` may be imported.
    """
    folder = tmp_path_factory.mktemp("küche")
    repository = folder / "modèles 猫"
    store(repository, "first", brightness(), classes=CLASSES)
    store(repository, "second", constant(one_hot(6)), classes=CLASSES)
    content = config(
        repository,
        "separate",
        members=MEMBERS,
        ensemble={"cascade": {"order": list(MEMBERS), "exit_at": [0.9]}},
        cache={},
        feedback={"max_requests": 100},
    )
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"raise RuntimeError('{name} was imported')")
    (folder / "mine.py").write_text(OWN_BUILD)
    (folder / "helper.py").write_text("MORE = {'ingress': {'max_request_bytes': 1000000}}")
    content["applications"][0]["import_path"] = "mine:build"
    with Server(content, folder=folder) as running:
        yield running


def counted(server, name, label):
    return {unquote(tags[label]): value for tags, value in scrape(server, f"ray_ensemble_{name}_total")}


def stats(server):
    return httpx.get(f"{server.url}/stats", timeout=60).json()


def test_every_count_is_right(server):
    answers = [post(server, level(32 * step + SURE)).json() for step in range(8)]
    assert [answer["label"] for answer in answers] == list(NAMES)
    again = post(server, level(SURE))
    assert (again.json()["label"], again.json()["cache"]["hit"]) == (NAMES[0], True)
    assert post(server, level(UNSURE)).json()["asked"] == list(MEMBERS)
    assert eventually(lambda: sum(counted(server, "predictions", "label").values()) == 10)
    assert set(counted(server, "predictions", "label")) == set(NAMES)
    assert counted(server, "cascade_exits", "member") == {"first": 9, "second": 1}
    # The ingress itself passed one by, before it was ready.
    cached = counted(server, "cache_images", "result")
    assert (cached["hit"], cached["miss"]) == (1, 9)
    told = {"request_id": again.headers["X-Request-Id"], "label": NAMES[0]}
    assert httpx.post(f"{server.url}/feedback", json=told).json() == {"accepted": 1}
    unknown = httpx.post(f"{server.url}/feedback", json={"request_id": "x", "label": "狗"})
    assert (unknown.status_code, "狗" in unknown.json()["error"]["message"]) == (422, True)
    assert not any("Traceback" in file.read_text() for file in server.ray_logs("serve/replica_*.log"))


def test_a_replica_that_is_replaced_leaves_no_series(server):
    def requests():
        samples = scrape(server, "ray_ensemble_requests_total")
        return [(tags, value) for tags, value in samples if tags["outcome"] == "ok"]

    [(tags, before)] = requests()
    assert not tags.keys() & {"replica", "WorkerId"}
    buckets = len(scrape(server, "ray_ensemble_batch_size_bucket"))
    replica = stats(server)["replica"]
    for options in server.content["applications"][0]["deployments"]:
        options["ray_actor_options"]["num_cpus"] = 0.11
    server.deploy()
    assert eventually(lambda: stats(server).get("replica", replica) != replica, 120)
    assert eventually(lambda: post(server, level(SURE)).status_code == 200)
    assert eventually(lambda: requests()[0][1] > before)
    assert [found for found, _ in requests()] == [tags]
    assert len(scrape(server, "ray_ensemble_batch_size_bucket")) == buckets
    # The memory of the replica that has ended is forgotten.
    gauge = "ray_ensemble_process_resident_memory_bytes"
    assert eventually(lambda: replica not in {tags["replica"] for tags, _ in scrape(server, gauge)}, 90)


def test_a_build_of_ones_own_is_served_from_a_folder_with_modules_of_such_names(server):
    assert post(server, pictures.jpeg()).status_code == 200
    # Decoded in a process of its own.
    assert post(server, pictures.encode(pictures.noise(), ".png"), content_type="image/png").status_code == 200
    assert post(server, bytes(1_000_001)).status_code == 413
