"""What makes the ensemble cheap, over every protocol: a cascade and a cache, separate and inline."""

import asyncio
import base64
import json

import grpc
import httpx
import pytest
from redis import Redis

from ensemble_serving import Client
from tests.server.clients import Grpc, infer_request
from tests.server.flows.conftest import MEMBERS, SURE, UNSURE
from tests.server.server import eventually, post, scrape


def infer(server, *images, **parameters):
    """The answer's parameters, over HTTP."""
    data = [base64.b64encode(image).decode() for image in images]
    inputs = [{"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}]
    body = {"inputs": inputs, "parameters": parameters}
    return httpx.post(f"{server.url}/v2/models/ensemble/infer", json=body, timeout=60).json()["parameters"]


def looked_up(server):
    samples = scrape(server, "ray_ensemble_cache_images_total")
    return {result: sum(v for s, v in samples if s["result"] == result) for result in ("hit", "miss", "passed")}


def saved(server):
    return sum(value for _, value in scrape(server, "ray_ensemble_cache_saved_seconds_total"))


def exits(server):
    samples = scrape(server, "ray_ensemble_cascade_exits_total")
    return {name: sum(v for s, v in samples if s["member"] == name) for name in MEMBERS}


def test_a_cascade_asks_on_only_where_it_is_not_sure_and_every_protocol_says_whom(server, picture):
    before = exits(server)
    sure, unsure = (post(server, picture(value), members="true").json() for value in (SURE, UNSURE))
    assert (sure["asked"], list(sure["members"])) == (["brightness"], ["brightness"])
    assert (unsure["asked"], list(unsure["members"])) == (["brightness", "one"], ["brightness", "one"])
    assert post(server, picture(SURE), quality="full").json()["asked"] == ["brightness", "one"]
    both = [["brightness"], ["brightness", "one"]]
    assert json.loads(infer(server, picture(SURE), picture(UNSURE))["asked"]) == both
    client = Grpc(server)
    answer = client.stub.ModelInfer(infer_request([picture(SURE), picture(UNSURE)]), timeout=60)
    client.close()
    assert json.loads(answer.parameters["asked"].string_param) == both
    assert eventually(lambda: exits(server) == {"brightness": before["brightness"] + 3, "one": before["one"] + 4})


def test_an_audit_tells_what_all_members_would_have_answered(server, picture):
    def audited():
        samples = scrape(server, "ray_ensemble_cascade_audits_total")
        return {result: sum(v for s, v in samples if s["result"] == result) for result in ("agrees", "differs")}

    post(server, picture(SURE))
    assert eventually(lambda: audited()["agrees"] > 0)
    assert audited()["differs"] == 0

    def thresholds():
        return [(labels["member"], value) for labels, value in scrape(server, "ray_ensemble_cascade_exit_at")]

    assert eventually(lambda: thresholds() == [("brightness", 0.9)])


def test_a_handle_tells_whom_the_cascade_asked(server, picture):
    from ray import serve

    with server.driver():
        handle = serve.get_app_handle("ensemble")
        assert handle.classify.remote(picture(SURE)).result(timeout_s=60).asked == ("brightness",)
        assert handle.classify.remote(picture(SURE), quality="full").result(timeout_s=60).asked == MEMBERS


def test_a_quality_that_is_none_is_refused(server, picture):
    answer = post(server, picture(SURE), quality="half")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_parameter")


PIXELS = {"name": "pixels", "datatype": "UINT8", "shape": [1, 32, 32, 3], "data": [0] * (32 * 32 * 3)}


def rungs(server):
    samples = scrape(server, "ray_ensemble_cascade_exits_total")
    return {number: sum(v for s, v in samples if s["rung"] == number) for number in "012"}


def test_a_caller_states_what_loss_it_accepts_over_every_protocol(server, picture):
    from ray import serve

    before = rungs(server)
    for tolerance, members, number, loss in ((0.1, 2, 0, 0.0), (0.5, 2, 1, 0.2), (1.5, 1, 2, 1.5)):
        told = {"number": number, "loss": loss, "cost": (1.0, 0.8, 0.5)[number]}
        answer = post(server, picture(UNSURE), tolerance=tolerance).json()
        held = answer["rung"].pop("is_held", None)
        assert (len(answer["asked"]), answer["rung"], held) == (members, told, True if number == 0 else None)
        assert json.loads(infer(server, picture(UNSURE), tolerance=tolerance)["rung"])[0]["number"] == number
        client, request = Grpc(server), infer_request([picture(UNSURE)])
        request.parameters["tolerance"].double_param = tolerance
        answered = client.stub.ModelInfer(request, timeout=60)
        client.close()
        assert json.loads(answered.parameters["rung"].string_param)[0]["number"] == number
        with server.driver():
            handle = serve.get_app_handle("ensemble")
            answer = handle.classify.remote(picture(UNSURE), tolerance=tolerance).result(timeout_s=60)
        assert (answer.rung.number, answer.rung.loss, len(answer.asked)) == (number, loss, members)
        for url in (server.url, f"grpc://{server.grpc}"):
            answer = classified(url, picture(UNSURE), tolerance=tolerance)
            assert (answer.rung.number, len(answer.asked)) == (number, members)
    # What earlier tests asked of every member may be counted only now.
    assert eventually(lambda: all(count >= before[number] + 6 for number, count in rungs(server).items()))
    # Predictions are kept by rung, whatever tolerance chose it.
    image = picture(UNSURE)
    answers = [post(server, image, tolerance=each).json() for each in (0.5, 0.3, 1.5)]
    assert [(each["cache"]["hit"], each["rung"]["number"]) for each in answers] == [(False, 1), (True, 1), (False, 2)]


def classified(url, image, **options):
    async def ask():
        async with Client(url) as client:
            return await client.classify(image, **options)

    return asyncio.run(ask())


def test_a_tolerance_that_cannot_be_meant_is_refused_over_every_protocol(server, picture):
    for wrong in (-1, "nan", "half", 200.0):
        answer = post(server, picture(SURE), tolerance=wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_parameter")
        client, request = Grpc(server), infer_request([picture(SURE)])
        field = "string_param" if isinstance(wrong, str) else "double_param"
        setattr(request.parameters["tolerance"], field, wrong)
        with pytest.raises(grpc.RpcError) as refused:
            client.stub.ModelInfer(request, timeout=60)
        client.close()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    wrong = {"tolerance": 0.5, "tolerance_under_load": 0.2}
    assert "send at least the tolerance, 0.5" in post(server, picture(SURE), **wrong).json()["error"]["message"]
    member = httpx.post(f"{server.url}/v2/models/one/infer", json={"inputs": [PIXELS], "parameters": {"tolerance": 1}})
    assert (member.status_code, "tune-cascade" in member.text) == (422, True)


def test_what_came_before_is_remembered_and_every_protocol_says_so(server, picture):
    before = looked_up(server)
    image = picture(UNSURE)
    first, second = post(server, image), post(server, image, top_k=3, members="true")
    assert (first.json()["cache"], first.headers.get("age")) == ({"hit": False}, None)
    answer = second.json()
    assert (answer["cache"]["hit"], answer["asked"], len(answer["top"])) == (True, list(MEMBERS), 3)
    assert int(second.headers["age"]) == int(answer["cache"]["age_s"])
    assert (answer["label"], answer["probability"]) == (first.json()["label"], first.json()["probability"])
    assert answer["model_versions"] == first.json()["model_versions"] == {"brightness": 1, "one": 1}
    assert answer["trace_id"] != first.json()["trace_id"]
    told = json.loads(infer(server, image, picture(UNSURE))["cache"])
    assert [each["hit"] for each in told] == [True, False]
    client = Grpc(server)
    answer = client.stub.ModelInfer(infer_request([image]), timeout=60)
    client.close()
    assert json.loads(answer.parameters["cache"].string_param)[0]["hit"]
    # What earlier tests missed may be counted only now.
    assert eventually(lambda: looked_up(server)["hit"] >= before["hit"] + 3)
    assert eventually(lambda: looked_up(server)["miss"] >= before["miss"] + 2)
    assert eventually(lambda: saved(server) > 0)


def test_a_caller_may_want_a_new_answer(server, picture):
    image = picture(SURE)
    headers = {"Content-Type": "image/png"}

    def hit(control):
        sent = headers | ({"Cache-Control": control} if control else {})
        return httpx.post(f"{server.url}/classify", content=image, headers=sent, timeout=60).json()["cache"]["hit"]

    assert [hit(control) for control in ("no-store", None, None)] == [False, False, True]
    assert [hit(control) for control in ("max-age=0, No-Cache", "no-store", None)] == [False, False, True]
    assert post(server, image, cache="no-cache").json()["cache"] == {"hit": False}
    assert post(server, image, cache="never").status_code == 422


def test_a_form_is_as_old_as_its_oldest_image(server, picture):
    images = [picture(SURE), picture(UNSURE)]

    def form():
        parts = [("image", (str(i), image, "image/png")) for i, image in enumerate(images)]
        return httpx.post(f"{server.url}/classify", files=parts, timeout=60)

    post(server, images[0])
    assert "age" not in form().headers
    again = form()
    ages = [result["cache"]["age_s"] for result in again.json()["results"]]
    assert int(again.headers["age"]) == int(max(ages))


def test_memory_tells_what_it_holds_and_redis_holds_it_for_all(server, picture):
    post(server, picture(SURE))
    if server.redis is None:
        assert eventually(lambda: any(value > 0 for _, value in scrape(server, "ray_ensemble_cache_bytes")))
        return
    client = Redis.from_url(server.redis)
    assert client.dbsize() > 0
    assert all(0 < client.pttl(key) <= 600_000 for key in client.scan_iter())
    client.close()


def test_votes_are_refused_while_it_serves(server, picture):
    deployment = "Combiner" if len(server.content["applications"][0]["deployments"]) > 1 else "Ingress"
    change = {"method": "majority_vote"}

    def refused():
        return sum(value for _, value in scrape(server, "ray_ensemble_config_refused_total"))

    before = refused()
    server.reconfigure(change if deployment == "Combiner" else {"nodes": {"Combiner": change}}, deployment)
    assert eventually(lambda: refused() == before + 1)
    assert post(server, picture(SURE)).json()["asked"] == ["brightness"]
