"""How the CPU computes, as oneDNN may use it."""

import os
import re
import subprocess
import sys

from tests.conftest import ROOT

ASK = "from deployments.members.arithmetic import arithmetic; print(arithmetic())"


def described(**environment):
    command = [sys.executable, "-c", ASK]
    return subprocess.check_output(command, env={**os.environ, **environment}, cwd=ROOT, text=True).strip()


def test_a_cpu_without_vnni_is_not_like_one_with_it():
    assert re.fullmatch("(exact|saturating) int8, (f32|bf16|f16)", described())
    assert described(ONEDNN_MAX_CPU_ISA="AVX2").startswith("saturating int8, ")
