import re

import pytest
from starlette.requests import Request

from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.service import Service
from deployments.ingress.settings import IngressSettings, PageConfig
from deployments.observe.observer import Observer
from deployments.observe.stats import Stats
from deployments.observe.tracing import ROOT, Tracing
from graph.config import parse


def server(page, stats=None):
    async def graph(batch):
        return batch

    ingress = Ingress(graph, IngressSettings(), 10, Observer(Tracing(None, {ROOT: "Ingress"}), stats))
    return HttpServer(Service(ingress, 10, lambda: True, page=page, strategy='mean of "2"', stats=stats))


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
    assert 'data-jaeger="http://jaeger:16686" data-classes="10" data-strategy="mean of &quot;2&quot;"' in text
    assert "{" not in text
    named = set(re.findall(r'(?:href|src)="([^"]+)"', text)) - {"/docs"}
    assert named == {"/page/icon.svg", "/page/style.css", "/page/script.js"}
    for path in named:
        assert (await get(served, path)).status_code == 200
    # The policy would refuse these.
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    again = await get(served, "/", if_none_match=page.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")


async def test_the_figures():
    stats = Stats()
    answer = await get(server(PageConfig(), stats), "/stats")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert b'"p50_ms":null' in answer.body


async def test_off_by_one_line():
    config = parse({"members": [{"name": "resnet"}], "page": {"enabled": False}})
    served = server(config.page)
    for path in ("/", "/stats", "/page/script.js"):
        assert (await get(served, path)).status_code == 404


@pytest.mark.parametrize("url", ["javascript:alert(1)", "ftp://x", 'http://x" onclick="y', "http://a b"])
def test_a_jaeger_that_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="jaeger_url"):
        parse({"members": [{"name": "resnet"}], "page": {"jaeger_url": url}})
