"""Traces and metrics of a real server, as a collector and a Prometheus get them."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from ray import serve

from tests import pictures
from tests.networks import brightness, heavy, store
from tests.server.clients import Grpc, infer_request
from tests.server.receiver import Receiver
from tests.server.server import Server, config, eventually, post, scrape

MEMBERS = ("left", "right", "brightness")
SLOW = MEMBERS[:2]
NODES = {"decode", *(f"predict {name}" for name in MEMBERS), "combine", "label"}
REQUEST = NODES | {"classify", "queue"}
ALONE = REQUEST | {"batch"}
SERVICES = {"classify": "Ingress", "decode": "JpegTransformer", "combine": "Combiner", "label": "Labeler"}
CALLER = "b7ad6b7169203331"


def traceparent(number, sampled=True):
    return f"00-{number:032x}-{CALLER}-{'01' if sampled else '00'}"


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A repository of two members that take some milliseconds, and one that doesn't."""
    root = tmp_path_factory.mktemp("slow")
    for name in SLOW:
        store(root, name, heavy(layers=6))
    store(root, "brightness", brightness())
    return root


@pytest.fixture(
    scope="module",
    params=[("separate", "grpc", "direct"), ("inline", "http/protobuf", "serve")],
)
def traced(request, slow):
    """A server whose traces go to a receiver: (server, receiver)."""
    placement, protocol, front = request.param
    with Receiver() as receiver:
        environment = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_url if protocol == "grpc" else receiver.http_url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        with Server(config(slow, placement, members=MEMBERS, front=front), **environment) as server:
            yield server, receiver


def whole(receiver, trace_id, names):
    """The spans of a trace by name, once those of these names are there."""
    eventually(lambda: names <= {span.name for span in receiver.trace(trace_id)})
    spans = {span.name: span for span in receiver.trace(trace_id)}
    assert names <= set(spans), sorted(spans)
    return spans


def check_tree(spans):
    root = spans["classify"]
    assert set(spans) - {"batch"} == REQUEST
    for name, span in spans.items():
        service = SERVICES.get(name) or (name.split()[1] if name.startswith("predict") else "Ingress")
        assert span.service == service
        if name != "classify":
            assert span.parent_id == root.span_id
            # One machine, one clock: a part lies within the whole, but for the batch's way back.
            assert span.start >= root.start
    for name in MEMBERS:
        predict = spans[f"predict {name}"]
        assert spans["decode"].end <= predict.start
        assert predict.end <= spans["combine"].start
        assert predict.attributes["ensemble.model.name"] == name
        assert predict.attributes["ensemble.model.version"] == 1
        together = predict.attributes["ensemble.queue_wait_ms"] + predict.attributes["ensemble.inference_ms"]
        assert together == pytest.approx((predict.end - predict.start) / 1e6, abs=1)
        assert predict.attributes["ensemble.inference_ms"] > 0
    assert spans["queue"].end <= spans["decode"].start
    assert spans["combine"].end <= spans["label"].start
    assert spans["label"].end <= root.end
    assert spans["decode"].attributes["ensemble.image.width"] == 60
    assert spans["decode"].attributes["ensemble.image.height"] == 40


def side_by_side(spans):
    """Whether the slow members worked at the same time: never, where one waits for the other's answer."""
    left, right = (spans[f"predict {name}"] for name in SLOW)
    return max(left.start, right.start) < min(left.end, right.end)


def test_metrics_count_known_traffic(traced):
    """The first test: nothing else has been counted yet."""
    server, _ = traced
    picture = pictures.jpeg(40, 60)
    answers = [post(server, picture, members="true").json() for _ in range(5)]
    assert post(server, b"no image").status_code == 400
    assert post(server, picture, "text/plain").status_code == 415
    client = Grpc(server)
    assert client.classify(picture)[0] == "ok"
    client.close()
    httpx.get(f"{server.url}/v2/health/ready")

    def requests():
        return {(s["protocol"], s["outcome"]): value for s, value in scrape(server, "ray_ensemble_requests_total")}

    expected = {
        ("http", "ok"): 5,
        ("http", "invalid_image"): 1,
        ("http", "unsupported_media_type"): 1,
        ("grpc", "ok"): 1,
    }
    assert eventually(lambda: requests() == expected), requests()
    [label] = {answer["label"] for answer in answers}
    agreement = {name: str(member["label"] == label).lower() for name, member in answers[0]["members"].items()}
    assert set(agreement.values()) == {"true", "false"}
    stages = {"decode": 7, **dict.fromkeys(NODES - {"decode"}, 6)}
    # Batches are counted after their answers, and each process reports by a clock of its own.
    for name, labels, expected in (
        ("predictions_total", ("label",), {(label,): 6}),
        ("member_predictions_total", ("member", "agrees"), dict.fromkeys(agreement.items(), 6)),
        ("request_duration_seconds_count", ("protocol",), {("http",): 7, ("grpc",): 1}),
        ("stage_duration_seconds_count", ("stage",), {(stage,): count for stage, count in stages.items()}),
        ("batch_size_count", (), {(): 7}),
        ("queue_wait_seconds_count", (), {(): 7}),
        ("member_version", ("member",), {(member,): 1 for member in MEMBERS}),
    ):

        def found(name=name, labels=labels):
            samples = scrape(server, f"ray_ensemble_{name}")
            return {tuple(s[label] for label in labels): value for s, value in samples}

        assert eventually(lambda found=found, expected=expected: found() == expected), (name, found())
    deployments = {d["name"] for d in server.content["applications"][0]["deployments"]}
    for name in ("cpu_seconds_total", "resident_memory_bytes"):

        def used(name=name):
            return {s["deployment"]: value for s, value in scrape(server, f"ray_ensemble_process_{name}")}

        assert eventually(lambda used=used: set(used()) == deployments), used()
        assert all(value > 0 for value in used().values())


def test_ten_requests_at_once_are_ten_whole_traces(traced):
    server, receiver = traced
    picture = pictures.jpeg(40, 60)

    def ask(number):
        headers = {"Content-Type": "image/jpeg", "traceparent": traceparent(number)}
        return httpx.post(f"{server.url}/classify", content=picture, headers=headers, timeout=60)

    numbers = range(1000, 1010)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, numbers))
    traces = []
    for number, answer in zip(numbers, answers, strict=True):
        trace_id = f"{number:032x}"
        assert answer.json()["trace_id"] == trace_id
        spans = whole(receiver, trace_id, REQUEST)
        check_tree(spans)
        assert answer.headers["traceresponse"].split("-")[2] == spans["classify"].span_id
        assert spans["classify"].parent_id == CALLER
        assert spans["classify"].attributes["http.response.status_code"] == 200
        traces.append(spans)
    wanted = {span_id for spans in traces for _, span_id in spans["queue"].links}

    def batches():
        """Of these requests: each is in the trace of one of them."""
        found = (span for spans in traces for span in receiver.trace(spans["classify"].trace_id))
        return {span.span_id: span for span in found if span.name == "batch"}

    assert eventually(lambda: set(batches()) == wanted)
    for spans in traces:
        [(_, batch)] = spans["queue"].links
        root = spans["classify"]
        assert (root.trace_id, root.span_id) in batches()[batch].links
        assert batches()[batch].attributes["ensemble.batch.size"] == len(batches()[batch].links)
    assert sum(len(batch.links) for batch in batches().values()) == 10


def test_members_work_side_by_side(traced):
    """In a trace soon, not in each: on a busy machine a member may get its batch when the other is done."""
    server, receiver = traced

    def together():
        trace_id = post(server, pictures.jpeg(40, 60)).json()["trace_id"]
        return side_by_side(whole(receiver, trace_id, ALONE))

    assert eventually(together)


def test_grpc_continues_and_returns_the_trace(traced):
    server, receiver = traced
    client = Grpc(server)
    metadata = [("traceparent", traceparent(2000)), ("request_id", "mine")]
    answer, call = client.stub.ModelInfer.with_call(
        infer_request([pictures.jpeg(40, 60)]), timeout=60, metadata=metadata
    )
    client.close()
    assert dict(call.trailing_metadata())["request_id"] == "mine"
    assert answer.parameters["trace_id"].string_param == f"{2000:032x}"
    spans = whole(receiver, f"{2000:032x}", ALONE)
    check_tree(spans)
    assert spans["classify"].attributes["rpc.system.name"] == "grpc"
    assert spans["classify"].attributes["ensemble.request.id"] == "mine"
    assert spans["classify"].attributes["rpc.response.status_code"] == "OK"


def test_a_handle_continues_and_returns_the_trace(traced):
    server, receiver = traced
    with server.driver():
        handle = serve.get_app_handle("ensemble")
        answer = handle.classify.remote(pictures.jpeg(40, 60), traceparent=traceparent(3000)).result(timeout_s=60)
        own = handle.classify.remote(pictures.jpeg(40, 60)).result(timeout_s=60)
    assert answer.trace_id == f"{3000:032x}"
    check_tree(whole(receiver, answer.trace_id, ALONE))
    assert whole(receiver, own.trace_id, ALONE)["classify"].parent_id == ""


def test_an_error_is_in_its_trace(traced):
    server, receiver = traced
    answer = httpx.post(f"{server.url}/classify", content=b"no image", headers={"X-Request-Id": "mine"})
    assert answer.headers["X-Request-Id"] == "mine"
    trace_id = answer.headers["traceresponse"].split("-")[1]
    spans = whole(receiver, trace_id, {"classify", "queue", "batch", "decode"})
    assert len(spans) == 4
    assert spans["decode"].failed
    assert spans["decode"].attributes["error.type"] == "invalid_image"
    assert spans["classify"].attributes["error.type"] == "invalid_image"
    assert spans["classify"].attributes["ensemble.request.id"] == "mine"
    # By the conventions a client's mistake is no error of the server.
    assert not spans["classify"].failed


def test_what_the_caller_does_not_sample_and_health_are_not_traced(traced):
    server, receiver = traced
    before = len(receiver.spans)
    headers = {"Content-Type": "image/jpeg", "traceparent": traceparent(4000, sampled=False)}
    answer = httpx.post(f"{server.url}/classify", content=pictures.jpeg(), headers=headers, timeout=60)
    assert answer.json()["trace_id"] == f"{4000:032x}"
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/ensemble/ready"):
        assert httpx.get(server.url + path).status_code == 200
    known = post(server, pictures.jpeg(40, 60)).json()["trace_id"]
    whole(receiver, known, ALONE)
    assert {span.trace_id for span in receiver.spans[before:]} == {known}
