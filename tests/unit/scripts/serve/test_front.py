import sys
from pathlib import Path

import pytest

from deployments.ingress.protocol import resolve
from scripts.configuration import IMPORT_PATH, read
from scripts.errors import ScriptError
from scripts.serve.front import FEW, few, in_front, why_serve


def config(import_path=IMPORT_PATH, count=1, route_prefix="/", **args):
    application = {"name": "ensemble", "import_path": import_path, "route_prefix": route_prefix, "args": args}
    return {"applications": [application] * count}


@pytest.mark.parametrize("content", [config(), config(front="direct"), config("mine:build", front="direct")])
def test_the_ingress_itself_takes_requests(content):
    assert why_serve(content) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (config(front="serve"), "front: serve"),
        (config("mine:build"), "mine:build does not say `front: direct`"),
        (config(count=2), "there are 2 applications"),
        ({}, "there are 0 applications"),
        (config(route_prefix="/x"), "route_prefix is not /"),
    ],
)
def test_where_serves_proxy_does_it_is_said(content, why, capsys):
    before = dict(content)
    folder = Path("none")
    with in_front(folder, content, None) as front:
        assert front is None
        assert content == before
    assert why in capsys.readouterr().out
    with pytest.raises(ScriptError, match="TLS ends at HAProxy"), in_front(folder, content, ("a", "b")):
        pass


@pytest.mark.parametrize(("placements", "expected"), [(["separate", None], FEW), (["separate", "inline"], 0), ([], 0)])
def test_the_first_ingress_gets_a_few_requests_alone_unless_a_member_needs_its_cores(placements, expected):
    members = [{"name": "m", **({"placement": placement} if placement else {})} for placement in placements]
    assert few(config(members=members)) == expected


def test_the_process_that_starts_haproxy_finds_a_protocol_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "spoken_here.py").write_text(
        "from deployments.ingress.protocol import Protocol\n\nclass Words(Protocol):\n    prefix = '/words'\n"
    )
    (tmp_path / "config.yaml").write_text("applications: []")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    read(Path("config.yaml"))
    assert "/words" in [each.prefix for each in resolve(["spoken_here:Words"])]
