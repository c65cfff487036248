import json
import re

import pytest
from starlette.requests import Request

from deployments.contract.errors import ConfigurationError
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Service
from deployments.ingress.settings import IngressSettings
from deployments.ingress.single_member import MemberModelInfo
from deployments.observe.observer import Observer
from deployments.ray_internals import serve_client
from ensemble_features.page.feature import FILES, Page, strategy
from graph.config import parse
from graph.feature import Site, wanted
from graph.signature import EnsembleSignature

CONFIG = {"members": [{"name": "near"}, {"name": "far", "weight": 2, "kind": "open_inference", "url": "http://a"}]}


def server(**page):
    async def graph(batch):
        return batch

    config = parse({**CONFIG, "page": page})
    [settings] = [each.settings for each in wanted(config) if each.feature is Page]
    versions = {"near": "3"}
    made = Page(
        config, EnsembleSignature((), {}, {}, (), {}), Site("app", "here", settings=settings, versions=versions)
    )
    ingress = Ingress.of_images(graph, IngressSettings(), 10, Observer())
    members = {"near": (ingress, MemberModelInfo((8, 8), "3", "openvino"))}
    service = Service(ingress, ("cat", "dog"), lambda: True, members=members, versions=versions, features=[made])
    return HttpServer(service)


async def get(served, path, **headers):
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    scope["headers"] = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await served(Request(scope))


async def test_the_page_and_every_file_that_it_names():
    served = server(jaeger_url="http://jaeger:16686")
    page = await get(served, "/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self'; img-src 'self' blob:;")
    text = page.body.decode()
    assert 'data-jaeger="http://jaeger:16686" data-classes="2"' in text
    assert "{" not in text
    named = set(re.findall(r'(?:href|src)="([^"]+)"', text)) - {"/docs"}
    assert named == {
        "/page/icon.svg",
        "/page/cat.jpg",
        "/page/coffee.jpg",
        "/page/rocket.jpg",
        "/page/style.css",
        "/page/script.js",
    }
    seen, new = set(), named
    while new:
        seen |= new
        texts = [(await get(served, path)) for path in new]
        assert all(answer.status_code == 200 for answer in texts)
        scripts = [answer.body.decode() for answer in texts if answer.media_type == "text/javascript"]
        new = {f"/page/{name}" for text in scripts for name in re.findall(r'from "\./(\S+)"', text)} - seen
    assert seen == {path for path in FILES if path != "/"}
    # The policy would refuse these.
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    again = await get(served, "/", if_none_match=page.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")


async def test_what_it_is_about():
    answer = await get(server(), "/page/about")
    assert json.loads(answer.body) == {
        "classes": ["cat", "dog"],
        "members": [
            {"name": "near", "weight": 1.0, "version": "3", "kind": "openvino"},
            {"name": "far", "weight": 2.0, "version": "", "kind": "remote"},
        ],
        "strategy": "mean of 2 members, of which 2 must answer",
        "reports": [],
    }


async def test_the_figures():
    answer = await get(server(), "/stats")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert b'"p50_ms":null' in answer.body
    assert set(json.loads(answer.body)) >= {"requests", "queue", "members", "replicas"}


@pytest.mark.parametrize(
    ("where", "machines"),
    [
        (["10.0.0.1", "10.0.0.2"], {"resnet": {"10.0.0.1": 2, "10.0.0.2": 1}}),
        # One whose machine is not chosen yet is on none.
        (["10.0.0.1", ""], None),
    ],
)
async def test_replicas_by_machine_where_there_are_several(where, machines, monkeypatch):
    replicas = {"resnet": {("RUNNING", where[0]): 2, ("STARTING", where[1]): 1}}
    monkeypatch.setattr(serve_client, "replicas", {"app": replicas}.get)
    figures = json.loads((await get(server(), "/stats")).body)
    assert figures["replicas"] == {"resnet": {"RUNNING": 2, "STARTING": 1}}
    assert figures.get("machines") == machines


async def test_off_by_one_line():
    served = server(enabled=False)
    for path in ("/", "/stats", "/page/script.js", "/page/about"):
        assert (await get(served, path)).status_code == 404


@pytest.mark.parametrize("url", ["javascript:alert(1)", "ftp://x", 'http://x" onclick="y', "http://a b"])
def test_a_jaeger_that_is_no_url_is_refused(url):
    with pytest.raises(ConfigurationError, match="jaeger_url"):
        wanted(parse({**CONFIG, "page": {"jaeger_url": url}}))


def test_the_strategy_in_words():
    usual = parse({"members": [{"name": "one"}, {"name": "six"}], "ensemble": {"quorum": 1}})
    assert strategy(usual) == "mean of 2 members, of which 1 must answer"
    cascade = {"cascade": {"order": ["six", "one"], "exit_at": [0.665]}}
    staged = parse({"members": [{"name": "one"}, {"name": "six"}], "ensemble": cascade})
    assert strategy(staged) == ("cascade: six, then one below 0.665; mean of 2 members, of which 2 must answer")
