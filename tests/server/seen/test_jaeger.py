"""What a real Jaeger holds of requests."""

import json

import httpx
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from ensemble_capacity.trace.file import FileSpanExporter
from ensemble_capacity.trace.spans import spans_in
from tests.server.clients import Grpc, infer_request
from tests.server.load import Load
from tests.server.seen import jaeger as program
from tests.server.seen.conftest import CAT, MEMBERS
from tests.server.server import eventually, post

pytestmark = pytest.mark.skipif(not program.POSSIBLE, reason="no Jaeger, and no Go to build it with: make jaeger")

CALLER = "b7ad6b7169203331"
SERVICES = {
    "classify": "Ingress",
    "queue": "Ingress",
    "batch": "Ingress",
    "decode": "JpegTransformer",
    **{f"predict {name}": name for name in MEMBERS},
    "combine": "Combiner",
    "label": "Labeler",
}


def whole(jaeger, trace_id, names=frozenset(SERVICES)):
    """The spans that it holds of a trace, by name, once those of these names are there."""

    def spans():
        found = jaeger.get(f"/api/v3/traces/{trace_id}")
        return {} if found is None else {span.name: span for span in spans_in(found["result"])}

    eventually(lambda: set(names) <= set(spans()))
    assert set(spans()) == set(names)
    return spans()


def over_http(server, _handle):
    return post(server, CAT).json()["trace_id"]


def over_grpc(server, _handle):
    client = Grpc(server)
    answer = client.stub.ModelInfer(infer_request([CAT]), timeout=60)
    client.close()
    return answer.parameters["trace_id"].string_param


def by_handle(_server, handle):
    return handle.classify.remote(CAT).result(timeout_s=60).trace_id


@pytest.mark.parametrize("ask", [over_http, over_grpc, by_handle])
def test_a_request_is_found_whole_by_the_id_of_its_answer(server, handle, jaeger, ask):
    trace_id = ask(server, handle)
    spans = whole(jaeger, trace_id)
    root = spans["classify"]
    assert root.parent_id is None
    for name, span in spans.items():
        assert span.service == SERVICES[name]
        assert span.trace_id == trace_id
        assert span.process["service.namespace"] == "ensemble"
        if span is not root:
            assert span.parent_id == root.span_id
    # Each of the two knows the other.
    assert spans["queue"].links == [{"trace_id": trace_id, "span_id": spans["batch"].span_id}]
    assert spans["batch"].links == [{"trace_id": trace_id, "span_id": root.span_id}]
    assert spans["batch"].attributes == {"ensemble.batch.size": 1}
    assert root.attributes["ensemble.protocol"] == ask.__name__.split("_")[1]
    assert spans["decode"].attributes["ensemble.image.width"] == 451
    for member in MEMBERS:
        predict = spans[f"predict {member}"]
        assert predict.attributes["ensemble.model.name"] == member
        assert predict.attributes["ensemble.model.version"] == 2
        assert spans["decode"].end_us <= predict.start_us
        assert predict.end_us <= spans["combine"].start_us


def test_services_and_operations(server, jaeger):
    whole(jaeger, over_http(server, None))
    assert set(jaeger.get("/api/v3/services")["services"]) == set(SERVICES.values())
    operations = jaeger.get("/api/v3/operations", service="Ingress")["operations"]
    assert {operation["name"] for operation in operations} == {"classify", "queue", "batch"}


def test_the_members_work_at_the_same_time(server, jaeger):
    files = [("image", (f"{number}.jpg", CAT, "image/jpeg")) for number in range(16)]

    def side_by_side():
        answer = httpx.post(f"{server.url}/classify", files=files, timeout=60)
        spans = whole(jaeger, answer.json()["results"][0]["trace_id"])
        left, right = (spans[f"predict {name}"] for name in MEMBERS)
        return max(left.start_us, right.start_us) < min(left.end_us, right.end_us)

    # On a machine that is busy with others one may be through before the other is begun.
    assert eventually(side_by_side)


def test_a_search_finds_what_it_should(server, jaeger):
    good = over_http(server, None)
    bad = post(server, b"no image").headers["traceresponse"].split("-")[1]
    files = [("image", (f"{number}.jpg", CAT, "image/jpeg")) for number in range(3)]
    three = httpx.post(f"{server.url}/classify", files=files, timeout=60).json()["results"][0]["trace_id"]
    for trace_id in (good, three):
        whole(jaeger, trace_id)
    whole(jaeger, bad, {"classify", "queue", "batch", "decode"})
    everything = {good, bad, three}

    def found(**query):
        return jaeger.search(**query) & everything

    assert found(service="Ingress") == everything
    assert found(service="resnet") == {good, three}
    assert found(service="Ingress", operation="batch") == everything
    assert found(service="Combiner", operation="combine") == {good, three}
    assert found(service="JpegTransformer", tags=json.dumps({"error.type": "invalid_image"})) == {bad}
    assert found(service="Ingress", tags=json.dumps({"ensemble.batch.size": "3"})) == {three}
    assert found(service="resnet", tags=json.dumps({"ensemble.batch.size": "1"})) == {good}
    assert found(service="Ingress", operation="classify", minDuration="1h") == set()
    assert found(service="Ingress", operation="classify", minDuration="1us", maxDuration="1h") == everything


def test_what_the_caller_does_not_sample_is_not_there(server, jaeger):
    headers = {"traceparent": f"00-{77:032x}-{CALLER}-00"}
    answer = httpx.post(f"{server.url}/classify", content=CAT, headers=headers, timeout=60)
    assert answer.json()["trace_id"] == f"{77:032x}"
    # What comes later is there, and spans go out in order.
    whole(jaeger, over_http(server, None))
    assert jaeger.get(f"/api/v3/traces/{77:032x}") is None


def test_jaegers_death_under_load_is_not_noticed(server, jaeger):
    with Load(server) as load:
        jaeger.kill()
        lost = sum(load.statuses.values())
        assert eventually(lambda: sum(load.statuses.values()) > lost + 100)
        jaeger.start()
        assert eventually(lambda: jaeger.search(service="Ingress"), 60)
    assert set(load.statuses) == {200}
    whole(jaeger, over_http(server, None))


def test_a_file_of_traces_is_accepted(jaeger, tmp_path):
    """By OTLP over HTTP, and by what the page's "Upload" asks."""
    provider = TracerProvider(resource=Resource({"service.name": "from a file"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(tmp_path)))
    tracer = provider.get_tracer("ensemble-serving")
    with tracer.start_as_current_span("classify") as root:
        tracer.start_span("batch", attributes={"ensemble.batch.size": 1}).end()
    trace_id = f"{root.get_span_context().trace_id:032x}"
    [path] = tmp_path.iterdir()
    for line in path.read_text().splitlines():
        # As docs/observability.md has it.
        headers = {"Content-Type": "application/json"}
        taken = httpx.post(f"http://127.0.0.1:{jaeger.otlp_http}/v1/traces", content=line, headers=headers)
        assert taken.status_code == 200, taken.text
        uploaded = httpx.post(f"{jaeger.url}/api/transform", content=line)
        assert uploaded.json()["data"][0]["traceID"] == trace_id
    assert whole(jaeger, trace_id, {"classify", "batch"})["batch"].attributes["ensemble.batch.size"] == 1
