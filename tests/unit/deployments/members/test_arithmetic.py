"""How the CPU computes, as oneDNN may use it."""

import os
import re
import subprocess
import sys

from deployments.members.arithmetic import arithmetic
from deployments.members.openvino import OpenVino
from tests.conftest import ROOT

ASK = "from deployments.members.arithmetic import arithmetic; print(arithmetic())"


def described(**environment):
    command = [sys.executable, "-c", ASK]
    return subprocess.check_output(command, env={**os.environ, **environment}, cwd=ROOT, text=True).strip()


def test_a_cpu_without_vnni_is_not_like_one_with_it():
    assert re.fullmatch("(exact|saturating) int8, (f32|bf16|f16)", described())
    assert described(ONEDNN_MAX_CPU_ISA="AVX2").startswith("saturating int8, ")


def test_a_precision_that_every_member_names_is_the_same_on_each_cpu():
    members = [OpenVino(name=name, inference_precision="f32") for name in ("a", "b")]
    assert arithmetic(members).partition(", ")[2] == "f32"
    own = arithmetic().partition(", ")[2]
    assert arithmetic([*members, OpenVino(name="c")]).split(", ")[1:] == sorted({"f32", own})
