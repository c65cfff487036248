import json
import math
import sys

import msgspec
import pytest

from ensemble_features.proportion import proportion
from ensemble_models.dataset import Dataset
from ensemble_models.shadow import ask, judged, main, of_canary, sentences
from ensemble_models.statistics import chance, needed, verdict
from scripts.errors import ScriptError
from tests.local_servers import HttpServer, Reply, refusal


@pytest.mark.parametrize(
    ("first", "second", "p"),
    # By hand: 2 (1 + 12 + 66) / 4096 for 10 and 2.
    [(6, 0, 1 / 32), (5, 0, 1 / 16), (10, 2, 158 / 4096), (3, 3, 1.0), (0, 0, 1.0)],
)
def test_chance_is_that_of_the_exact_test(first, second, p):
    assert chance(first, second) == pytest.approx(p, rel=1e-3)
    assert chance(second, first) == chance(first, second)
    tail = sum(math.comb(110, k) for k in range(41))
    assert chance(70, 40) == pytest.approx(2 * tail / 2**110)


def test_a_great_many_pairs_are_no_trouble():
    assert chance(5000, 5000) == pytest.approx(1.0)
    assert chance(5200, 4800) == pytest.approx(6.6e-5, rel=0.05)
    assert chance(499, 500) == pytest.approx(chance(500, 500), rel=0.05)


def test_the_verdict_is_for_whoever_is_right_more_often():
    assert verdict(900, 30, 10, 60).word == "promote"
    assert verdict(900, 10, 30, 60).word == "don't"
    assert str(verdict(900, 30, 10, 60)) == "promote"


def test_more_are_needed_where_chance_would_do():
    found = verdict(950, 12, 8, 30)
    assert (found.word, found.p > 0.05, found.more) == ("need more", True, 4300)
    assert str(found) == "need 4,300 more"
    # With those it is enough, if they are like these.
    assert chance(*(round(count * (1000 + found.more) / 1000) for count in (12, 8))) < 0.05


@pytest.mark.parametrize(("first", "second"), [(5, 0), (3, 1), (12, 8), (60, 50), (205, 195)])
def test_what_is_needed_would_tell_and_much_less_would_not(first, second):
    count, share = needed(first, second), first / (first + second)
    assert chance(round(share * count * 1.05 + 0.5), round((1 - share) * count * 1.05)) < 0.05
    if count > 20:
        assert chance(round(share * count * 0.8), round((1 - share) * count * 0.8)) > 0.05


def test_where_nothing_differs_more_are_needed_all_the_same():
    assert verdict(100, 0, 0, 0).more == 200
    assert verdict(90, 5, 5, 0).more > 0


def stats(labelled=None, agreed=(90, 100)):
    share = msgspec.to_builtins(proportion(*agreed))
    return {"rollout": {"shadows": {"s": {"agreed": {"ensemble": share}, "labelled": labelled or {}}}}}


def test_a_server_without_a_shadow_is_told_what_to_do():
    for told in ({}, {"rollout": {"shadows": {}}}):
        with pytest.raises(ScriptError, match="role: shadow"):
            judged(told)


def test_it_is_told_in_words():
    pairs = {"both": 80, "shadow_only": 12, "other_only": 1, "neither": 7}
    [told] = judged(stats({"ensemble": pairs}))
    assert told["verdict"] == "promote"
    lines = list(sentences(told))
    assert lines[0] == "s and ensemble: agree on 90.00% (82.56% to 94.48%) of 100 images"
    assert "s is right on 92.00%, the other on 81.00%; it alone on 12, the other alone on 1" in lines[1]
    assert "promote (p = 0.0034)" in lines[2]
    [unlabelled] = judged(stats())
    assert "no label is known" in list(sentences(unlabelled))[1]
    [nothing] = judged(stats(agreed=(0, 0)))
    assert list(sentences(nothing)) == [
        "s and ensemble: nothing was compared yet (images that a canary answers are left out)"
    ]


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "cat").mkdir()
    for number in range(3):
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(b"image")
    return Dataset.open(tmp_path)


def server(replicas=("a",), totals=(100,), refuses=False, running=1):
    """Answers `/stats` by one replica after the other, the last again and again, and takes images and labels."""
    replicas, totals = list(replicas), list(totals)
    counts = {"replicas": {"Ingress": {"RUNNING": running, "STARTING": 1}}}

    def reply(asked):
        if asked.path == "/stats":
            replica = replicas.pop(0) if len(replicas) > 1 else replicas[0]
            total = totals.pop(0) if len(totals) > 1 else totals[0]
            return Reply(body=json.dumps({"replica": replica, **counts, **stats(agreed=(50, total))}).encode())
        if asked.path == "/classify" and refuses:
            return refusal(20)
        return Reply(body=b'{"accepted": 1}')

    return HttpServer(reply)


async def test_images_are_sent_before_the_counts_are_read(dataset):
    with server(totals=(100, 103)) as one:
        [judgement] = await ask(one.url, dataset, 1)
        assert judgement["compared"] == 103
        assert [each.path for each in one.asked if each.path != "/stats"] == [*["/classify"] * 3, "/feedback"]


async def test_of_several_replicas_one_answers(dataset, capsys):
    with server(running=2) as two:
        [judgement] = await ask(two.url, None, 1)
        assert (judgement["compared"], "one of 2 replicas" in capsys.readouterr().out) == (100, True)
        with pytest.raises(ScriptError, match="several replicas of the ingress"):
            await ask(two.url, dataset, 1)
    with server() as one:
        await ask(one.url, None, 1)
    assert not capsys.readouterr().out


async def test_images_that_are_refused_are_counted(dataset, capsys):
    with server(refuses=True) as full:
        await ask(full.url, dataset, 1)
    assert capsys.readouterr().out.startswith("3 of 3 images were refused and left out; lower --connections")


async def test_a_page_is_no_statistics():
    with HttpServer(lambda asked: Reply(body=b"<html>")) as page, pytest.raises(ScriptError, match="is this the ensem"):
        await ask(page.url, None, 1)


async def test_an_address_for_grpc_is_refused():
    with pytest.raises(ScriptError, match="over HTTP alone"):
        await ask("grpc://127.0.0.1:9", None, 1)


@pytest.mark.parametrize("flag", ["--limit", "--connections"])
def test_what_is_for_images_is_refused_without_them(flag, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["shadow", "http://127.0.0.1:9", flag, "2"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert flag in capsys.readouterr().err


def test_a_canary_is_reported_with_what_was_found():
    agreed = {"count": 2, "total": 50, "share": 0.04, "low": 0.011, "high": 0.135}
    pairs = {"both": 1, "canary_only": 2, "stable_only": 40, "neither": 7}
    reported = {"rolled_back": "answers", "found": "it is wrong", "agreed": agreed, "labelled": pairs}
    assert list(sentences(of_canary("a", reported))) == [
        "canary of a: agrees with the stable version on 4.00% (1.10% to 13.50%) of 50 images",
        "  by true labels the canary alone is right on 2, the stable version alone on 40",
        "  rolled back for its answers: it is wrong",
    ]
    nothing = {"rolled_back": "", "found": "", "agreed": {**agreed, "total": 0}, "labelled": pairs}
    assert list(sentences(of_canary("a", nothing)))[::2] == ["canary of a: nothing was compared yet", "  goes on"]
    assert len(judged({"rollout": {"canaries": {"a": reported}}})) == 1
