import json
import re

import pytest
from starlette.requests import Request

from deployments.ingress.http.page.page import FILES
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Service, no_replicas
from deployments.ingress.settings import IngressSettings, PageConfig
from deployments.ingress.single_member import MemberModelInfo
from deployments.observe.observer import Observer
from deployments.observe.stats import Stats
from graph.config import parse


def server(page, stats=None, replicas=no_replicas):
    async def graph(batch):
        return batch

    ingress = Ingress.of_images(graph, IngressSettings(), 10, Observer(stats=stats))
    service = Service(
        ingress,
        ("cat", "dog"),
        lambda: True,
        page=page,
        strategy='mean of "2"',
        stats=stats,
        replicas=replicas,
        members={"near": (ingress, MemberModelInfo((8, 8), "3", "openvino"))},
        versions={"near": "3"},
        weights={"far": 2.0, "near": 1.0},
    )
    return HttpServer(service)


async def get(served, path, **headers):
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    scope["headers"] = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await served(Request(scope))


async def test_the_page_and_every_file_that_it_names():
    served = server(PageConfig(jaeger_url="http://jaeger:16686"))
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
    answer = await get(server(PageConfig()), "/page/about")
    assert json.loads(answer.body) == {
        "classes": ["cat", "dog"],
        "members": [
            {"name": "far", "weight": 2.0, "version": "", "kind": "remote"},
            {"name": "near", "weight": 1.0, "version": "3", "kind": "openvino"},
        ],
        "strategy": 'mean of "2"',
        "reports": [],
    }


async def test_the_figures():
    stats = Stats()
    answer = await get(server(PageConfig(), stats), "/stats")
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
async def test_replicas_by_machine_where_there_are_several(where, machines):
    async def replicas():
        return {"resnet": {("RUNNING", where[0]): 2, ("STARTING", where[1]): 1}}

    figures = json.loads((await get(server(PageConfig(), Stats(), replicas), "/stats")).body)
    assert figures["replicas"] == {"resnet": {"RUNNING": 2, "STARTING": 1}}
    assert figures.get("machines") == machines


async def test_off_by_one_line():
    config = parse({"members": [{"name": "resnet"}], "page": {"enabled": False}})
    served = server(config.page)
    for path in ("/", "/stats", "/page/script.js", "/page/about"):
        assert (await get(served, path)).status_code == 404


@pytest.mark.parametrize("url", ["javascript:alert(1)", "ftp://x", 'http://x" onclick="y', "http://a b"])
def test_a_jaeger_that_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="jaeger_url"):
        parse({"members": [{"name": "resnet"}], "page": {"jaeger_url": url}})
