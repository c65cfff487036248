"""The corpus of small requests that may cost much: it is of its seed alone, and goes to whatever is served."""

from random import Random

import pytest

from deployments.ingress.http import documents
from deployments.protocol.services import SERVICES, known_as, types
from lab.faults.amplification import images
from lab.faults.amplification.corpus import MOST_BYTES, Corpus, makers
from lab.faults.amplification.endpoints import NOBODY, UNLISTED, methods, routes
from lab.faults.amplification.texts import TEXTS, example
from tests.door import Door

SEED, KEY = 5, "ens_key"
# A head of HTTP, whose parts may be large themselves.
HEAD_BYTES = 64 * 1024


@pytest.fixture(scope="module", autouse=True)
def _():
    """An image of 49 megapixels takes seconds to make, and is the same as in `hostile`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "original", str.encode)
        patch.setattr(images, "largest", str.encode)
        yield


@pytest.fixture(scope="module")
def http():
    return Door()._http


@pytest.fixture(scope="module")
def document(http):
    """Of all routes, also those that this door's settings turn off."""
    return documents.openapi(http._routes)


@pytest.fixture(scope="module")
def corpus(document):
    return Corpus(document, SEED, KEY)


def test_a_request_is_made_of_its_seed_and_number(document, corpus):
    again, other = Corpus(document, SEED, KEY), Corpus(document, SEED + 1, KEY)
    assert [corpus.made(index) for index in range(8)] == [again.made(index) for index in range(8)]
    assert [corpus.made(index).where for index in range(8)] != [other.made(index).where for index in range(8)]


def test_every_route_is_covered(http, document):
    covered = {endpoint.path for endpoint in routes(document)}
    for template in http._routes:
        asked = template.replace("{version}", "1")
        for parameter in ("{model}", "{region}"):
            asked = asked.replace(parameter, NOBODY)
        assert asked in covered, f"add {template} to UNLISTED: the OpenAPI document leaves it out"


def test_another_name_of_a_path_is_asked_as_that_is(document):
    by_path = {endpoint.path: endpoint for endpoint in routes(document)}
    for path, same in UNLISTED.items():
        if same:
            assert (by_path[path].method, by_path[path].schema) == (by_path[same].method, by_path[same].schema)


def test_every_method_of_grpc_is_covered():
    covered = {endpoint.path for endpoint in methods()}
    assert covered == {f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods}
    assert {known_as(method) for service in SERVICES for method in service.methods} == set(types())


def test_every_kind_can_be_made_and_is_no_larger_than_what_is_taken_in(corpus):
    kinds = {(endpoint.name, name) for endpoint, name in corpus.pairs}
    assert len(kinds) == len(corpus.pairs)
    assert all(set(makers(endpoint)) >= {"nothing", "zeros"} for endpoint, _ in corpus.pairs)
    for index in range(0, len(corpus.pairs), 400):
        assert corpus.made(index).size <= MOST_BYTES + HEAD_BYTES


def test_the_first_requests_go_everywhere_with_a_key_and_without(corpus):
    chosen = [corpus._chosen(index, Random(index)) for index in range(2 * len(corpus.endpoints))]
    for with_key in (True, False):
        asked = {endpoint.name for endpoint, _, shown in chosen if shown is with_key}
        assert asked == {endpoint.name for endpoint in corpus.endpoints}


def test_some_show_a_key_and_some_do_not(corpus):
    made = [corpus.made(index) for index in range(16)]
    assert {costly.with_key for costly in made} == {True, False}
    for costly in made:
        shown = KEY.encode() in costly.sent.content or any(KEY in str(value) for _, value in costly.sent.metadata)
        assert shown == costly.with_key


@pytest.mark.parametrize("path", ["/classify", "/v2/models/ensemble/infer", "/v1/models/ensemble:predict", "/v2"])
def test_a_request_that_is_blown_up_nowhere_fits_its_schema(document, path):
    [operation] = document["paths"][path].values()
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        made = example(content["schema"], document["components"]["schemas"])
        assert {"inputs", "instances"} & set(made)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_about_the_size_that_is_asked(name):
    assert len(TEXTS[name](Random(1), 100_000)) <= 1_200_000
