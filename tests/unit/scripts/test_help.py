"""Every command explains itself where none of the extras is installed."""

import subprocess
import sys

from scripts.cli import by_name, groups

EXTRAS = ("torch", "torchvision", "nncf", "matplotlib", "skimage", "onnx")
SCRIPT = """
import contextlib, io, runpy, sys
for name in {extras}:
    sys.modules[name] = None
for command in {modules}:
    sys.argv = [command, "--help"]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_module(command, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert end.code in (0, None), (command, end.code)
    assert "usage:" in out.getvalue().lower(), command
    assert "--help" in out.getvalue(), command
"""


def test_help_needs_no_extras():
    modules = [command.module for command in by_name(groups()).values()]
    # The laboratory requires what it draws with.
    script = SCRIPT.format(extras=EXTRAS, modules=[name for name in modules if not name.startswith("lab.")])
    done = subprocess.run([sys.executable, "-W", "error::SyntaxWarning", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
