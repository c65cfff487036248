"""The notebook of `examples/` is executed, from its first cell to its last."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.server.server import free_ports

pytest.importorskip("torch", reason="the notebook trains by PyTorch: make train")


@pytest.fixture
def folder():
    """A short one, because the paths of Unix sockets below it are."""
    folder = Path(tempfile.mkdtemp(prefix="es-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_notebook_leads_from_two_networks_to_an_answer(folder):
    # `--ports-from` takes four in a row.
    while (ports := free_ports(4)) != list(range(ports[0], ports[0] + 4)):
        pass
    text = (ROOT / "examples" / "own_models.ipynb").read_text()
    (folder / "notebook.ipynb").write_text(text.replace("PORT = 9500", f"PORT = {ports[0]}"))
    own = {name: str(folder / name) for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    environment = {**os.environ, **own, "TMPDIR": str(folder), "RAY_TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [Path(sys.executable).with_name("jupyter-execute"), "--inplace", folder / "notebook.ipynb"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, asked, _ = json.loads((folder / "notebook.ipynb").read_text())["cells"]
    answer = "".join(asked["outputs"][0]["data"]["text/plain"])
    assert "'label': 'lime'" in answer
    assert "'small': 1, 'large': 1" in answer
