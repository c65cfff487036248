"""Schemathesis makes requests up of the OpenAPI document, good and bad ones, and looks at the answers."""

import subprocess

from tests.server.shared.conftest import HERE
from tests.server.shared.servers import only


@only(1)
def test_schemathesis_finds_nothing(server, pythons, tmp_path):
    options = ["--max-examples", "3", "--seed", "1", "--no-color", "--phases", "examples,coverage,fuzzing"]
    # These members are asked as the third is.
    options += ["--exclude-path-regex", "/v2/models/(one|six)(/|$)"]
    program = pythons("schemathesis").with_name("schemathesis")
    command = [program, "--config-file", HERE / "schemathesis.toml", "run", f"{server.url}/openapi.json", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:]
