"""Runs the commands of README and of the pages in a fresh clone, in order, and compares the printed answers.

    git clone . /tmp/clone && make -C /tmp/clone .venv/serve.installed
    python -m tests.followed /tmp/clone README.md docs/models.md

A command of a block of bash runs as a reader would type it, in the clone and in its environment. A server runs until
the next server, or until the end of its page. If a block of JSON follows a block of bash, the last output must have its
keys, and its values but for times, ids and probabilities. A block with a title is written as a file of this name.
`tests/followed.yaml` lists the commands that need something else, each with the reason. The servers use the ports of
the pages: run this in a network namespace beside others. What is in the clone besides its environment is lost before
each page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import yaml

from packages.models.tests.imports import shapes
from tests.server.test_own_models import Drawn, drawn_images

KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
BLOCK = re.compile(r'^```(bash|json|\w+(?= title="))(?: title="([\w.]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
# A command that takes longer has a fault, or is in the list.
LONGEST_S, READY_S = 300, 600
CURL = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }'
# What is no shell that starts a server: the signal that stops it goes to the server.
PROGRAMS = ("ensemble", ".venv/bin/ensemble")
# What differs from run to run.
VARYING = {"trace_id", "probability", "probabilities", "timings", "age_s"}


class Step(NamedTuple):
    """A command of a page, and the answer that the page prints after its block."""

    command: str
    answer: str | None


class Content(NamedTuple):
    """A file that a page tells its reader to write."""

    name: str
    text: str


class Failed(Exception):
    """A command failed, or printed another answer."""


def steps(page: str) -> Iterator[Step | Content]:
    """Yield the files of a page, and the commands of its blocks of bash; an open quote goes on in the next line."""
    blocks = [match.groups() for match in BLOCK.finditer(page)]
    for (language, title, text), following in zip(blocks, [*blocks[1:], ("", None, "")], strict=True):
        if title:
            yield Content(title, text)
        elif language == "bash":
            commands = list(commands_of(text))
            for place, command in enumerate(commands):
                yield Step(command, following[2] if following[0] == "json" and place == len(commands) - 1 else None)


def commands_of(text: str) -> Iterator[str]:
    """Yield each command of a block, with all of its lines: a line is the last one if bash can parse what there is."""
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        command = "\n".join(lines)
        goes_on = line.rstrip().endswith(("\\", "|", "&&"))
        is_whole = subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0
        if is_whole and not goes_on:
            if command.strip() and not command.lstrip().startswith("#"):
                yield command.strip()
            lines = []


def prepare(clone: Path) -> None:
    """Write the models and the images that a reader has: drawn flowers, and models that tell them apart."""
    subprocess.run(["git", "clean", "-fdxq", "-e", ".venv", "-e", "*.egg-info"], cwd=clone, check=True)
    noise = np.random.default_rng(5)
    for name, layout, order in (("one", "NCHW", "RGB"), ("two", "NHWC", "BGR"), ("classifier", "NCHW", "RGB")):
        onnx.save(Drawn(0, layout, order, "imagenet", noise).model, clone / f"{name}.onnx")
    for folder, seed in (("images", 1), ("other-images", 2)):
        for name, encoded in drawn_images(seed, 20):
            file = clone / folder / Path(name).with_suffix(".jpg")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded)
    (clone / "cat.jpg").write_bytes((clone / "tests" / "cat.jpg").read_bytes())
    # What another server and another program leave: a repository of Triton's, and a model with its answers.
    shapes.triton_one(clone).rename(clone / "model_repository")
    (clone / "theirs").mkdir()
    (clone / "theirs" / "model.onnx").write_bytes((clone / "one.onnx").read_bytes())
    images = sorted(file.relative_to(clone / "images") for file in (clone / "images").rglob("*.jpg"))
    answers = ["file,label", *(f"{file},{file.parent}" for file in images)]
    (clone / "answers.csv").write_text("\n".join(answers), encoding="utf-8")


class Reader:
    """Follows pages in a clone, as a reader in a shell would."""

    def __init__(self, clone: Path) -> None:
        self._clone = clone
        self._server: subprocess.Popen[bytes] | None = None
        path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path}

    def follow(self, page: str, serve: str | None = None, mine: str | None = None) -> Iterator[tuple[str, str]]:
        """Run the commands of a page; yield each with "ran", "answer", or the reason why it was left out."""
        try:
            if mine:
                (self._clone / "my.yaml").write_bytes((self._clone / mine).read_bytes())
            if serve:
                self._serve(f"make serve CONFIG={serve}")
            for step in steps((self._clone / page).read_text(encoding="utf-8")):
                if isinstance(step, Content):
                    (self._clone / step.name).write_text(step.text, encoding="utf-8")
                    yield step.name, "written"
                else:
                    yield step.command, self._run(step)
        finally:
            self._stop()

    def _run(self, step: Step) -> str:
        starts = [start for start in KNOWN["skipped"] if step.command.startswith(start)]
        if starts:
            return f"left out: {KNOWN['skipped'][max(starts, key=len)]}"
        if step.command.startswith(tuple(KNOWN["servers"])):
            self._serve(step.command)
            return "serves"
        time.sleep(next((wait for start, wait in KNOWN["later"].items() if step.command.startswith(start)), 0))
        # No page's command is to write outside of the clone; and an error of HTTP is an error.
        command = step.command.replace("/etc/ensemble/keys", str(self._clone / "keys"))
        script = ["bash", "-euo", "pipefail", "-c", f"{CURL}\n{command}"]
        done = subprocess.run(
            script, cwd=self._clone, env=self._environment, capture_output=True, text=True, timeout=LONGEST_S
        )
        if done.returncode:
            raise Failed(f"{step.command}\nstatus {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        if step.answer is None:
            return "ran"
        compare(json.loads(step.answer), json.loads(done.stdout))
        return "ran, and the answer is the page's"

    def _serve(self, command: str) -> None:
        self._stop()
        log = self._clone / "served.log"
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                ["bash", "-c", f"exec {command}" if command.startswith(PROGRAMS) else command],
                cwd=self._clone,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + READY_S
        while not re.search(rb"^Ready", log.read_bytes(), re.MULTILINE):
            if self._server.poll() is not None or time.monotonic() > end:
                raise Failed(f"{command}\nis not ready: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)

    def _stop(self) -> None:
        if self._server is not None and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGINT)
            self._server.wait(60)
        self._server = None


def compare(printed: Any, got: Any, where: str = "") -> None:
    """Raise Failed unless an answer has the page's keys, and its values but for those that differ from run to run."""
    if isinstance(printed, dict) and isinstance(got, dict):
        for key in printed.keys() - VARYING:
            if key not in got:
                raise Failed(f"the answer lacks {where}{key}, which the page shows: {got}")
            compare(printed[key], got[key], f"{where}{key}.")
        if missing := printed.keys() - got.keys():
            raise Failed(f"the answer lacks {', '.join(missing)}: {got}")
    elif isinstance(printed, list) and isinstance(got, list):
        if len(printed) != len(got):
            raise Failed(f"{where}: {len(printed)} elements on the page, {len(got)} in the answer")
        for place, (one, other) in enumerate(zip(printed, got, strict=True)):
            compare(one, other, f"{where}{place}.")
    elif printed != got:
        raise Failed(f"{where}: {printed!r} on the page, {got!r} in the answer")


def main(clone: Path, pages: list[str]) -> int:
    """Follow the pages, print each command with what came of it, and return the number of pages that failed."""
    failed = 0
    for page in pages or list(KNOWN["pages"]):
        print(f"== {page}", flush=True)
        prepare(clone)
        try:
            for command, outcome in Reader(clone).follow(page, **KNOWN["pages"].get(page, {})):
                print(f"{outcome:40} {command.splitlines()[0][:110]}", flush=True)
        except (Failed, subprocess.TimeoutExpired, ValueError) as err:
            failed += 1
            print(f"FAILED: {err}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
