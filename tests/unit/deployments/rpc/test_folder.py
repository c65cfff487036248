import os
from pathlib import Path
from types import SimpleNamespace

import ray

from deployments.rpc.listener import place, sockets


def test_sockets_are_where_no_other_user_can_write(tmp_path, monkeypatch):
    (temporary := tmp_path / "ray").mkdir()
    # As Ray makes it.
    temporary.chmod(0o777)
    context = SimpleNamespace(get_temp_dir=lambda: str(temporary), get_node_id=lambda: "node")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    tmp_path.chmod(0o700)
    assert place("ensemble", "one").parent == tmp_path
    # As for `serve run`, whose Ray is in /tmp.
    tmp_path.chmod(0o755)
    assert place("ensemble", "one").parent == Path(f"/tmp/ensemble-{os.getuid()}")
    assert sockets("ensemble", "one") == place("ensemble", "one") != place("ensemble", "two")
