"""A configuration without some of the separate nodes is deployed under load, and no request fails."""

import os

from tests.networks import heavy, store
from tests.server.load import Load, replicas
from tests.server.server import Server, config, eventually

NODES = ("JpegTransformer", "one", "two", "Combiner", "Labeler")
# A combiner for the new ingress, which starts in 5 s by it. Serve ends the removed nodes after 2 s.
SLOW = "import time; time.sleep(5); from deployments.combiner import mean"


def test_a_member_is_removed_and_the_other_nodes_become_inline(tmp_path):
    for name in ("one", "two"):
        store(tmp_path, name, heavy())
    (tmp_path / "slow.py").write_text(SLOW)
    deployments = {name: {"max_surge_percent": 100} for name in ("Ingress", *NODES)}
    content = config(tmp_path, "separate", members=["one", "two"], deployments=deployments)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with Server(content, PYTHONPATH=path) as server:

        def found():
            return {process for name in ("Ingress", *NODES) for process in replicas(server, name)}

        [application] = content["applications"]
        application["args"]["members"] = [{**application["args"]["members"][0], "placement": "inline"}]
        application["args"] |= {node: {"placement": "inline"} for node in ("transformer", "labeler")}
        application["args"]["combiner"] = {"placement": "inline", "method": "slow:mean"}
        application["deployments"] = application["deployments"][:1]
        before = found()
        with Load(server) as load:
            server.deploy()
            assert eventually(lambda: not before & found(), 120)
        assert (set(load.statuses), load.missing) == ({200}, {}), load.statuses
        assert not any(replicas(server, name) for name in NODES)
