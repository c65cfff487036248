"""The servers that the tests of a file share: a cascade with a cache, and what is tried in it until nothing is."""

import itertools
import math
import shutil
from contextlib import ExitStack

import pytest

from tests.levels import level
from tests.networks import CLASSES, constant, one_hot, store
from tests.redis import running as redis_server
from tests.server.server import Server, config

MEMBERS = ("brightness", "one")
# In the middle of a step of brightness, and between two of them.
SURE, UNSURE = 16, 32
FRESH = itertools.count()
LADDER = [
    {"exit_at": [0.9], "loss": 0.2, "differs": 0.1, "cost": 0.8},
    {"exit_at": [0.0], "loss": 1.5, "differs": 1.0, "cost": 0.5},
]
STAGES = {"order": list(MEMBERS), "exit_at": [0.9], "audit": 1.0, "ladder": LADDER}
CASCADE = {"quorum": 1, "patience_ms": 3000, "cascade": STAGES}
# Nothing is tried until `user_config` says so.
BROKEN = {"version": 2, "share": 0, "least": 10}
CANARY = {"version": 2, "share": 0, "key": "header:x-user", "least": 10}
SHADOW = {"model": "one", "version": 2, "role": "shadow", "share": 0, "replaces": "one"}


# Not of the folder: what one file tries, counts and remembers would be in the next one's answers and counters.
@pytest.fixture(scope="module", params=["separate", "inline"])
def server(request, repository, tmp_path_factory):
    """A server whose first member knows how bright a picture is, and whose second says the same of all.

    With separate nodes it remembers in a Redis, inline in its memory.
    """
    with ExitStack() as stack:
        redis = None
        if request.param == "separate":
            redis = stack.enter_context(redis_server(tmp_path_factory.mktemp("redis")))
        root = tmp_path_factory.mktemp("models")
        for name in MEMBERS:
            shutil.copytree(repository / name, root / name)
        store(root, "one", constant(one_hot(6)), version=2)
        store(root, "brightness", constant([math.nan] * len(CLASSES)), version=2)
        content = config(
            root, request.param, members=MEMBERS, ensemble=CASCADE, cache={"redis": redis, "redis_timeout_ms": 2000}
        )
        args = content["applications"][0]["args"]
        args["members"][0] |= {"version": 1, "canary": BROKEN}
        args["members"][1] |= {"version": 1, "canary": CANARY}
        args["members"].append({"name": "candidate", "placement": request.param, "threads": 1, **SHADOW})
        args["feedback"] = {"max_requests": 1000}
        running = stack.enter_context(Server(content))
        running.redis = redis
        yield running


@pytest.fixture
def picture():
    """Draws a picture of a brightness that no other test has sent."""
    return lambda value: level(value) + next(FRESH).to_bytes(8, "big")
