"""What is tried beside what is served, over every protocol: canaries, a shadow and feedback, separate and inline."""

import json
import subprocess
import sys

import grpc
import httpx
import pytest

from ensemble_features.feedback import feedback_pb2 as pb
from tests.pictures import encode, grey
from tests.server.clients import Grpc, infer_request
from tests.server.flows.conftest import SURE, UNSURE
from tests.server.server import eventually, scrape


def tried(server):
    return httpx.get(f"{server.url}/stats", timeout=60).json()["rollout"]


def canary(server, member="one", **settings):
    """Change a canary's settings, and wait until they are in force."""
    server.reconfigure({"canaries": {member: settings}})
    assert eventually(lambda: tried(server)["canaries"][member]["share"] == settings["share"])


def version(server, image, **headers):
    sent = {"Content-Type": "image/png", **headers}
    return httpx.post(f"{server.url}/classify?quality=full", content=image, headers=sent, timeout=60).json()


def counted(server, name, *labels):
    """By these labels, what was counted."""
    samples = scrape(server, f"ray_ensemble_{name}")
    return {tuple(found[label] for label in labels): value for found, value in samples if value > 0}


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
    tester = next(user for user in users if got[user] == 2)
    client = Grpc(server)
    request = infer_request([picture(UNSURE)])
    request.parameters["top_k"].int64_param = 1
    request.parameters["quality"].string_param = "full"
    answer = client.stub.ModelInfer(request, timeout=60, metadata=[("x-user", tester)])
    client.close()
    assert json.loads(answer.parameters["classifications"].string_param)[0]["model_versions"]["one"] == 2
    both = {("one", "stable", "1"), ("one", "canary", "2")}
    assert eventually(lambda: both <= counted(server, "canary_predictions_total", "member", "role", "version").keys())


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


def test_a_canary_that_fails_costs_no_answer_and_is_rolled_back_once(server, picture):
    canary(server, "brightness", share=1.0)
    answers = [version(server, picture(UNSURE)) for _ in range(15)]
    assert [(answer["model_versions"]["brightness"], answer.get("missing")) for answer in answers] == [(1, None)] * 15
    told = tried(server)["canaries"]["brightness"]
    assert (told["share"], told["rolled_back"], told["canary"]["failed"]) == (0, "failures", 10)
    logs = "".join(path.read_text() for path in server.ray_logs("serve/replica_ensemble_Ingress*.log"))
    assert logs.count("is rolled back") == 1
    ended = {("brightness", "failures"): 1}
    assert eventually(lambda: counted(server, "canary_rollbacks_total", "member", "reason") == ended)
    assert counted(server, "canary_images_total", "member", "role", "failed")["brightness", "canary", "true"] == 10

    def share():
        return {labels["member"]: value for labels, value in scrape(server, "ray_ensemble_canary_share")}

    # Of a gauge there is no sample until it is set again.
    assert eventually(lambda: share().get("brightness") == 0)


def drawn(number):
    """A picture like no other, of the brightness that both members take for the same class."""
    pixels = grey(48)
    pixels[:4, :4] = number
    return encode(pixels, ".png")


def test_a_canary_whose_answers_are_wrong_is_rolled_back_and_a_command_says_why(server):
    canary(server, "one", share=1.0)
    for number in range(250):
        version(server, drawn(number))
        if tried(server)["canaries"]["one"]["rolled_back"]:
            break
    told = tried(server)["canaries"]["one"]
    assert (told["share"], told["rolled_back"], told["agreed"]["count"]) == (0, "answers", 0)
    assert "the other members agree with the stable version alone on 14 of 14 images" in told["found"]
    assert eventually(lambda: ("one", "answers") in counted(server, "canary_rollbacks_total", "member", "reason"))
    said = subprocess.run(
        [sys.executable, "-m", "ensemble_models.shadow", server.url], capture_output=True, text=True, check=True
    ).stdout
    assert "canary of one: agrees with the stable version on 0.00%" in said
    assert "rolled back for its answers: the other members agree" in said


def feedback(server, *lines, kind="application/json"):
    content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return httpx.post(f"{server.url}/feedback", content=content, headers={"Content-Type": kind}, timeout=60)


def test_a_shadow_is_compared_and_labels_tell_who_was_right(server, picture):
    server.reconfigure({"shadows": {"candidate": {"share": 1.0}}})

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
    assert stats["feedback"]["versions"]["one"] == {"1": stats["feedback"]["members"]["one"]}
    assert list(stats["feedback"]["exits"]) == ["one"]
    command = [sys.executable, "-m", "ensemble_models.shadow", server.url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "candidate and one: agree on 0.00%" in said
    assert "it alone on 1, the other alone on 0" in said
    # The last that was counted is told last, and all of a process at once.
    assert eventually(lambda: ("already_labelled",) in counted(server, "feedback_labels_total", "result"))
    assert ("candidate", "compared") in counted(server, "shadow_images_total", "member", "result")
    right = counted(server, "feedback_answers_total", "kind", "name", "right")
    assert right["shadow", "candidate", "true"] == 1


def test_labels_come_line_by_line_for_each_image_and_by_whatever_it_is_known_by(server, picture):
    parts = [("image", (str(i), image, "image/png")) for i, image in enumerate([picture(SURE), picture(SURE)])]
    form = httpx.post(f"{server.url}/classify", files=[("image", ("x", b"x", "text/plain")), *parts], timeout=60)
    assert [("error" in each) for each in form.json()["results"]] == [True, False, False]
    request = form.headers["X-Request-Id"]
    unknown = tried(server)["feedback"]["labels"].get("unknown_request", 0)
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
    assert tried(server)["feedback"]["labels"]["unknown_request"] == unknown + 1


def test_grpc_tells_labels_too(server, picture):
    with grpc.insecure_channel(server.grpc) as channel:
        client = Grpc(server)
        client.stub.ModelInfer(infer_request([picture(SURE)]), timeout=60, metadata=[("request_id", "told by grpc")])
        client.close()
        tell = channel.unary_unary(
            "/ensemble.FeedbackService/Label",
            request_serializer=pb.LabelRequest.SerializeToString,
            response_deserializer=pb.LabelResponse.FromString,
        )
        true = pb.TrueLabel(request_id="told by grpc", name="level0")
        assert tell(pb.LabelRequest(labels=[true]), timeout=60).accepted == 1
        with pytest.raises(grpc.RpcError) as refused:
            tell(pb.LabelRequest(labels=[true]), timeout=60)
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert refused.value.details().startswith("already_labelled: ")
        both = tell(pb.LabelRequest(labels=[true, pb.TrueLabel(request_id="told by grpc", index=99)]), timeout=60)
        assert (both.accepted, [each.code for each in both.results]) == (0, ["already_labelled", "unknown_label"])


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
