"""The rules that close what can't be bound to loopback, between two network namespaces."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.serve.ports import GRPC_PORT, HTTP_PORT, METRICS_PORT
from tests.conftest import ROOT

# What replicas have, and one of nobody's that the rules leave alone.
REPLICAS, SOMEBODYS = [32768, 39953, 60999], 2222


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables; .ci/run installs it")
def test_the_rules_close_what_is_not_the_service():
    service, internal = [HTTP_PORT, GRPC_PORT], [METRICS_PORT, *REPLICAS]
    ports = sorted([*service, *internal, SOMEBODYS])
    script, rules = Path(__file__).with_name("firewall_script.py"), ROOT / "configs" / "nftables.conf"
    command = ["unshare", "--map-root-user", "--net", sys.executable, script, rules, *map(str, ports)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    left = sorted([*service, SOMEBODYS])
    assert json.loads(done.stdout) == {
        "open": ports,
        "closed": left,
        "closed by IPv6": left,
        "from here": ports,
        "from loopback": ports,
        "a machine of the cluster": ports,
        "open again": ports,
    }
