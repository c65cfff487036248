"""What makes the ensemble cheap, and what is tried in it, over every protocol, separate and inline."""

import base64
import itertools
import json
import shutil
from contextlib import ExitStack

import httpx
import pytest
from redis import Redis

from tests.networks import constant, one_hot, store
from tests.redis import running as redis_server
from tests.server.clients import Grpc, infer_request
from tests.server.server import Server, config, eventually, post, scrape
from tests.server.shared.test_http import level

MEMBERS = ("brightness", "one")
# In the middle of a step of brightness, and between two of them.
SURE, UNSURE = 16, 32
FRESH = itertools.count()
CASCADE = {"quorum": 1, "patience_ms": 3000, "cascade": {"order": list(MEMBERS), "exit_at": [0.9], "audit": 1.0}}

# Nothing is tried until `user_config` says so.
CANARY = {"version": 2, "share": 0, "key": "header:x-user", "least": 10}
SHADOW = {"model": "one", "version": 2, "role": "shadow", "share": 0, "replaces": "one"}


@pytest.fixture(scope="module", params=["separate", "inline"])
def server(request, repository, tmp_path_factory):
    """A server whose first member knows how bright a picture is, and whose second says the same of all.

    With separate nodes it remembers in a Redis, inline in its memory.
    """
    with ExitStack() as stack:
        redis = None
        if request.param == "separate":
            redis = stack.enter_context(redis_server(tmp_path_factory.mktemp("redis")))
        root = tmp_path_factory.mktemp("models")
        for name in MEMBERS:
            shutil.copytree(repository / name, root / name)
        store(root, "one", constant(one_hot(6)), version=2)
        content = config(root, request.param, members=MEMBERS, ensemble=CASCADE, cache={"redis": redis})
        args = content["applications"][0]["args"]
        args["members"][1] |= {"version": 1, "canary": CANARY}
        args["members"].append({"name": "candidate", "placement": request.param, "threads": 1, **SHADOW})
        args["feedback"] = {"max_requests": 1000}
        running = stack.enter_context(Server(content))
        running.redis = redis
        yield running


@pytest.fixture
def picture():
    """Draws a picture of a brightness that no other test has sent."""
    return lambda value: level(value) + next(FRESH).to_bytes(8, "big")


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
    thresholds = scrape(server, "ray_ensemble_cascade_exit_at")
    assert [(labels["member"], value) for labels, value in thresholds] == [("brightness", 0.9)]


def test_a_handle_tells_whom_the_cascade_asked(server, picture):
    from ray import serve

    with server.driver():
        handle = serve.get_app_handle("ensemble")
        assert handle.classify.remote(picture(SURE)).result(timeout_s=60).asked == ("brightness",)
        assert handle.classify.remote(picture(SURE), quality="full").result(timeout_s=60).asked == MEMBERS


def test_a_quality_that_is_none_is_refused(server, picture):
    answer = post(server, picture(SURE), quality="half")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_parameter")


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
    assert eventually(lambda: looked_up(server)["hit"] == 3 and looked_up(server)["miss"] >= before["miss"] + 2)
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
    server.reconfigure(change if deployment == "Combiner" else {"nodes": {"Combiner": change}}, deployment)
    assert eventually(lambda: sum(value for _, value in scrape(server, "ray_ensemble_config_refused_total")) == 1)
    assert post(server, picture(SURE)).json()["asked"] == ["brightness"]


def canary(server, **settings):
    """Change the canary's settings, and wait until they are in force."""
    server.reconfigure({"canaries": {"one": settings}})
    share = settings.get("share", 0)
    assert eventually(lambda: [value for _, value in scrape(server, "ray_ensemble_canary_share")] == [share])


def version(server, image, **headers):
    sent = {"Content-Type": "image/png", **headers}
    return httpx.post(f"{server.url}/classify?quality=full", content=image, headers=sent, timeout=60).json()


def test_a_share_of_the_users_gets_the_canary_and_every_protocol_says_which_version(server, picture):
    canary(server, share=0.5)
    image = picture(UNSURE)
    users = [str(number) for number in range(12)]
    told = {user: version(server, image, **{"X-User": user}) for user in users}
    got = {user: answer["model_versions"]["one"] for user, answer in told.items()}
    assert set(got.values()) == {1, 2}
    # What one version said is never remembered as the other's.
    again = {user: version(server, image, **{"X-User": user}) for user in users}
    assert {user: answer["model_versions"]["one"] for user, answer in again.items()} == got
    assert {got[user] for user, answer in again.items() if answer["cache"]["hit"]} == {1, 2}
    tried = next(user for user in users if got[user] == 2)
    client = Grpc(server)
    request = infer_request([picture(UNSURE)])
    request.parameters["top_k"].int64_param = 1
    request.parameters["quality"].string_param = "full"
    answer = client.stub.ModelInfer(request, timeout=60, metadata=[("x-user", tried)])
    client.close()
    assert json.loads(answer.parameters["classifications"].string_param)[0]["model_versions"]["one"] == 2

    def votes():
        samples = scrape(server, "ray_ensemble_canary_predictions_total")
        return {(labels["role"], labels["version"]) for labels, value in samples if value > 0}

    assert eventually(lambda: votes() == {("stable", "1"), ("canary", "2")})


def test_a_handle_has_headers_too(server, picture):
    from ray import serve

    canary(server, share=0.5)
    with server.driver():
        handle = serve.get_app_handle("ensemble")
        told = {
            handle.classify.remote(picture(UNSURE), quality="full", headers={"X-User": str(user)})
            .result(timeout_s=60)
            .model_versions["one"]
            for user in range(12)
        }
    assert told == {1, 2}


def test_a_share_that_is_none_is_refused_while_it_serves(server, picture):
    def refused():
        return sum(value for _, value in scrape(server, "ray_ensemble_config_refused_total"))

    before = refused()
    server.reconfigure({"canaries": {"one": {"share": 2}}})
    assert eventually(lambda: refused() == before + 1)
    assert version(server, picture(UNSURE))["model_versions"]["one"] in {1, 2}


def tried(server):
    return httpx.get(f"{server.url}/stats", timeout=60).json()["rollout"]


def feedback(server, *lines, kind="application/json"):
    content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return httpx.post(f"{server.url}/feedback", content=content, headers={"Content-Type": kind}, timeout=60)


def test_a_shadow_is_compared_and_labels_tell_who_was_right(server, picture):
    server.reconfigure({"shadows": {"candidate": {"share": 1.0, "max_queue_ms": 60000}}})

    def shadowed():
        answer = version(server, picture(UNSURE))
        assert (sorted(answer["model_versions"]), answer.get("missing")) == (["brightness", "one"], None)
        return tried(server)["shadows"]["candidate"]["agreed"]

    agreed = eventually(shadowed)
    # The ensemble and the member say `level1`, the candidate `level6`.
    assert {other: share["count"] for other, share in agreed.items()} == {"ensemble": 0, "one": 0}
    before = tried(server)["shadows"]["candidate"]["agreed"]["ensemble"]["total"]
    headers = {"Content-Type": "image/png", "X-Request-Id": "a picture of mine"}
    httpx.post(f"{server.url}/classify?quality=full", content=picture(UNSURE), headers=headers, timeout=60)
    assert eventually(lambda: tried(server)["shadows"]["candidate"]["agreed"]["ensemble"]["total"] > before)
    told = {"request_id": "a picture of mine", "label": "level6"}
    answers = [feedback(server, {**told, "label": "level9"}), feedback(server, told), feedback(server, told)]
    assert [answer.status_code for answer in answers] == [422, 200, 409]
    assert answers[1].json() == {"accepted": 1}
    assert [answer.json()["error"]["code"] for answer in answers[::2]] == ["unknown_label", "already_labelled"]
    stats = tried(server)
    only = {"both": 0, "shadow_only": 1, "other_only": 0, "neither": 0}
    assert stats["shadows"]["candidate"]["labelled"] == {"ensemble": only, "one": only}
    assert stats["feedback"]["shadows"]["candidate"]["share"] == 1.0
    assert (stats["feedback"]["ensemble"]["count"], stats["feedback"]["ensemble"]["total"]) == (0, 1)
    assert stats["feedback"]["versions"] == {"one": {"1": stats["feedback"]["members"]["one"]}}
    assert list(stats["feedback"]["exits"]) == ["one"]

    def right():
        samples = scrape(server, "ray_ensemble_feedback_answers_total")
        return {(labels["kind"], labels["name"]) for labels, value in samples if labels["right"] == "true" and value}

    assert eventually(lambda: right() == {("shadow", "candidate")})
    results = {labels["result"] for labels, _ in scrape(server, "ray_ensemble_shadow_images_total")}
    assert "compared" in results


def test_labels_come_line_by_line_for_each_image_and_by_whatever_it_is_known_by(server, picture):
    parts = [("image", (str(i), image, "image/png")) for i, image in enumerate([picture(SURE), picture(SURE)])]
    form = httpx.post(f"{server.url}/classify", files=[("image", ("x", b"x", "text/plain")), *parts], timeout=60)
    assert [("error" in each) for each in form.json()["results"]] == [True, False, False]
    request = form.headers["X-Request-Id"]
    client = Grpc(server)
    client.stub.ModelInfer(infer_request([picture(SURE)]), timeout=60, metadata=[("request_id", "by grpc")])
    client.close()
    answer = feedback(
        server,
        *({"request_id": request, "label": "level0", "index": index} for index in range(3)),
        {"request_id": "by grpc", "label": 0},
        b"no json",
        b'{"request_id": "x", "label": true}',
        kind="application/x-ndjson",
    )
    told = answer.json()
    assert (answer.status_code, told["accepted"]) == (200, 3)
    codes = [each.get("error", {}).get("code") for each in told["results"]]
    assert codes == ["unknown_request", None, None, None, "invalid_parameter", "invalid_parameter"]
    refused = [feedback(server, b"[1]"), feedback(server, {"label": "level0"}), feedback(server, b"{" * 40000)]
    assert [each.status_code for each in refused] == [422] * 3
    assert httpx.get(f"{server.url}/feedback", timeout=60).status_code == 405
    assert tried(server)["feedback"]["labels"]["unknown_request"] == 1


def test_a_handle_tells_labels_too(server, picture):
    from ray import serve

    from graph.errors import AlreadyLabelled, UnknownRequest

    with server.driver():
        handle = serve.get_app_handle("ensemble")
        trace = handle.classify.remote(picture(SURE)).result(timeout_s=60).trace_id
        handle.feedback.remote(trace, "level0").result(timeout_s=60)
        for request, error in ((trace, AlreadyLabelled), ("another", UnknownRequest)):
            with pytest.raises(error):
                handle.feedback.remote(request, "level0").result(timeout_s=60)


def test_while_redis_is_down_there_is_no_cache_one_line_in_the_log_and_no_error(server, picture):
    if server.redis is None:
        return
    image = picture(SURE)
    post(server, image)
    assert post(server, image).json()["cache"]["hit"]
    redis_server.process.kill()
    redis_server.process.wait()
    answers = [post(server, image) for _ in range(5)]
    assert [(answer.status_code, answer.json()["cache"]) for answer in answers] == [(200, {"hit": False})] * 5
    logs = "".join(path.read_text() for path in server.ray_logs("serve/replica_ensemble_Ingress*.log"))
    assert logs.count("Redis does not answer") == 1
