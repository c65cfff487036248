"""The command `ensemble shadow`: a running server's counts of its shadows and canaries, and the verdict."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import click

from deployments.contract.names import INGRESS
from ensemble_models.dataset import Dataset
from ensemble_models.options import FILE, POSITIVE, Command, option
from ensemble_models.results import file_options, write_files
from ensemble_models.statistics import verdict
from ensemble_serving.transports import NoResponse, Request, Transport, connect
from graph.features.proportion import wilson
from scripts.client import KEY, for_each, no_answer
from scripts.errors import ScriptError

NOT_FOUND, OVERLOADED = 404, (429, 503)
# Requests in flight.
AT_ONCE = 4
# Labels in a request, and how long a shadow may take for the images that it has.
LABELS_AT_ONCE = 500
SETTLED_S = 10.0
SEVERAL = (
    "the server has several replicas of the ingress, and each counts its own images; send them to a server with one "
    "(num_replicas: 1 of Ingress)"
)
PAIRS = ("both", "shadow_only", "other_only", "neither")

# By the shadow and what it is compared with: agreed, compared, and the four counts of `PAIRS`.
Counted = dict[tuple[str, str], list[int]]
Canaries = Mapping[str, Mapping[str, Any]]


def counted(stats: Mapping[str, Any]) -> Counted:
    """Read the counts of each shadow from `/stats`.

    Raises:
        ScriptError: there is neither a shadow nor a canary.
    """
    rollout = stats.get("rollout") or {}
    shadows = rollout.get("shadows") or {}
    if not shadows and not rollout.get("canaries"):
        raise ScriptError(
            "the server has no shadow and no canary; give it a member with `role: shadow` or `canary` (docs/rollout.md)"
        )
    return {
        (name, other): [agreed["count"], agreed["total"], *(each["labelled"].get(other, {}).get(p, 0) for p in PAIRS)]
        for name, each in shadows.items()
        for other, agreed in (each["agreed"] or {"ensemble": {"count": 0, "total": 0}}).items()
    }


def since(now: Counted, before: Counted) -> Counted:
    """Subtract earlier counts from the counts of now.

    Raises:
        ScriptError: something was counted anew.
    """
    nothing = [0] * (2 + len(PAIRS))
    found = {who: [a - b for a, b in zip(counts, before.get(who, nothing), strict=True)] for who, counts in now.items()}
    if any(count < 0 for counts in found.values() for count in counts):
        raise ScriptError("the server began to count anew meanwhile; send the images again")
    return found


def judged(found: Counted) -> list[dict[str, Any]]:
    """Judge each shadow against each member it is compared with: agreement, its interval, and the verdict."""
    judgements = []
    for (name, other), (agreed, compared, *pairs) in found.items():
        low, share, high = wilson(agreed, compared)
        result: dict[str, Any] = {"shadow": name, "other": other, "compared": compared}
        if compared:
            result |= {"agreement": round(share, 4), "low": round(low, 4), "high": round(high, 4)}
        if sum(pairs):
            reached = verdict(*pairs)
            result |= dict(zip(PAIRS, pairs, strict=True))
            result |= {"p": float(f"{reached.p:.2g}"), "verdict": str(reached), "more": reached.more}
        judgements.append(result)
    return judgements


def sentences(judgement: Mapping[str, Any]) -> list[str]:
    """Describe a judgement in words."""
    if "canary" in judgement:
        return about_canary(judgement)
    who = f"{judgement['shadow']} and {judgement['other']}"
    if not judgement["compared"]:
        return [f"{who}: nothing was compared yet (images that a canary answers are left out)"]
    agreed = f"{judgement['agreement']:.2%} ({judgement['low']:.2%} to {judgement['high']:.2%})"
    lines = [f"{who}: agree on {agreed} of {judgement['compared']:,} images"]
    if "verdict" not in judgement:
        return [*lines, "  no label is known: POST /feedback takes labels, and --data sends images that have some"]
    labelled = sum(judgement[name] for name in PAIRS)
    shadow, (both, shadow_only, other_only) = judgement["shadow"], (judgement[name] for name in PAIRS[:3])
    return [
        *lines,
        f"  of {labelled:,} labelled: {shadow} is right on {(both + shadow_only) / labelled:.2%}, the other on "
        f"{(both + other_only) / labelled:.2%}; it alone on {shadow_only:,}, the other alone on {other_only:,}",
        f"  {judgement['verdict']} (p = {judgement['p']})",
    ]


def of_canary(name: str, canary: Mapping[str, Any]) -> dict[str, Any]:
    """Make a judgement of a member's canary from `/stats`."""
    pairs = {which: canary["labelled"][which] for which in ("both", "canary_only", "stable_only", "neither")}
    compared = {which: canary["agreed"][which] for which in ("share", "low", "high")}
    verdict = {which: canary[which] for which in ("rolled_back", "found")}
    return {"canary": name, "compared": canary["agreed"]["total"], **compared, **pairs, **verdict}


def about_canary(judgement: Mapping[str, Any]) -> list[str]:
    """Describe a canary's judgement in words."""
    agreed = "nothing was compared yet"
    if judgement["compared"]:
        share = f"{judgement['share']:.2%} ({judgement['low']:.2%} to {judgement['high']:.2%})"
        agreed = f"agrees with the stable version on {share} of {judgement['compared']:,} images"
    verdict = f"rolled back for its {judgement['rolled_back']}" if judgement["rolled_back"] else "goes on"
    found = f": {judgement['found']}" if judgement["found"] else ""
    alone = f"{judgement['canary_only']:,}, the stable version alone on {judgement['stable_only']:,}"
    return [
        f"canary of {judgement['canary']}: {agreed}",
        f"  by true labels the canary alone is right on {alone}",
        f"  {verdict}{found}",
    ]


async def stats(server: Transport) -> tuple[str, int, Counted, Canaries]:
    """Ask an ingress replica for its id, the number of running replicas, and its counts, also of canaries."""
    response = await server.send(Request("/stats", method="GET"))
    if not response.ok:
        raise ScriptError(f"/stats answered {response.status}: {response.body[:200]!r}")
    try:
        found = json.loads(response.body)
    except ValueError as err:
        raise ScriptError(f"/stats answered {response.body[:200]!r}; is this the ensemble?") from err
    running = (found.get("replicas") or {}).get(INGRESS, {}).get("RUNNING", 1)
    canaries = (found.get("rollout") or {}).get("canaries") or {}
    return found.get("replica", ""), running, counted(found), canaries


async def send(server: Transport, dataset: Dataset, connections: int) -> None:
    """Send labelled images, then their labels, and wait until the shadows have answered."""
    labels: list[dict[str, str]] = []
    refused = 0

    async def one(image: tuple[bytes, str]) -> None:
        nonlocal refused
        request = uuid4().hex
        response = await server.send(Request("/classify", image[0], (("x-request-id", request),)))
        if response.ok:
            labels.append({"request_id": request, "label": image[1]})
        elif response.status in OVERLOADED:
            refused += 1
        else:
            raise ScriptError(f"the server answered an image with {response.status}: {response.body[:200]!r}")
        if len(labels) >= LABELS_AT_ONCE:
            await send_labels(server, labels)

    await for_each(dataset.read(), one, connections, len(dataset))
    await send_labels(server, labels)
    if refused:
        print(f"{refused:,} of {len(dataset):,} images were refused and left out; lower --connections")
    give_up = time.monotonic() + SETTLED_S
    before, now = None, await stats(server)
    while now != before and time.monotonic() < give_up:
        await asyncio.sleep(1)
        before, now = now, await stats(server)


async def send_labels(server: Transport, labels: list[dict[str, str]]) -> None:
    """Send labels, and forget them."""
    lines, count = "\n".join(map(json.dumps, labels)), len(labels)
    labels.clear()
    if not count:
        return
    headers = (("content-type", "application/x-ndjson"),)
    response = await server.send(Request("/feedback", lines.encode(), headers))
    if response.status == NOT_FOUND:
        raise ScriptError("the server takes no labels; add `feedback: {}` to its configuration (docs/rollout.md)")
    if not response.ok or json.loads(response.body)["accepted"] == 0:
        raise ScriptError(f"the server took none of {count} labels: {response.body[:300]!r}")


async def ask(url: str, dataset: Dataset | None, connections: int) -> list[dict[str, Any]]:
    """Judge a server's shadows and canaries by all images they have seen, or by the images of a dataset.

    Raises:
        ScriptError: it can't be reached, has neither, takes no labels, or several replicas have counted.
    """
    key = os.environ.get(KEY)
    if url.startswith("grpc"):
        raise ScriptError(f"{url}: /stats is answered over HTTP alone; name the server's http:// or https:// address")
    try:
        server = connect(url, headers=(("authorization", f"Bearer {key}"),) if key else ())
    except ValueError as err:
        raise ScriptError(f"{url}: {err}") from err
    try:
        replica, running, before, canaries = await stats(server)
        if dataset is None:
            if running > 1:
                print(f"/stats was answered by one of {running} replicas of the ingress, each with counts of its own:")
            return [*judged(before), *(of_canary(*each) for each in canaries.items())]
        if running > 1:
            raise ScriptError(SEVERAL)
        await send(server, dataset, connections)
        another, _, now, canaries = await stats(server)
        if another != replica:
            raise ScriptError(SEVERAL)
        return [*judged(since(now, before)), *(of_canary(*each) for each in canaries.items())]
    except NoResponse as err:
        raise no_answer(url, err) from err
    finally:
        await server.close()


@click.command("shadow", cls=Command)
@click.argument("url")
@option("--data", type=FILE, metavar="PATH", help="Zip file or folder of <class>/*.jpg to send.")
@option("--limit", type=POSITIVE, metavar="N", help="Number of images to send; default: all.")
@option("--connections", type=POSITIVE, metavar="N", help=f"Requests in flight, with --data; default: {AT_ONCE}.")
@file_options("json")
def main(url: str, data: Path | None, limit: int | None, connections: int | None, json: Path | None) -> None:
    """Report how far each shadow and canary of a running server agreed, and whether to promote a shadow.

    ensemble shadow http://127.0.0.1:8000
    ensemble shadow http://127.0.0.1:8000 --data test.zip --limit 2000

    The command reads the counts of `/stats` since the start, of one ingress replica. With --data it first sends
    labelled images, then their labels, and reports on these alone; the configuration then needs `feedback` and one
    ingress replica. "promote" and "don't" are the verdict of McNemar's exact test, at 5 %, on labelled images. "need N
    more" is the number of labelled images that would decide. Images that a canary answered do not count for a shadow.
    Of canaries the command reports all images since the start; the server decides about them.

    The API key is read from the environment variable ENSEMBLE_API_KEY.
    """
    if data is None and (limit or connections):
        raise click.UsageError("--limit and --connections are for --data")
    dataset = None if data is None else Dataset.open(data)
    if dataset is not None and limit is not None and limit < len(dataset):
        # Of every class, and the same ones each time.
        dataset = dataset.held_out(limit)
    judgements = asyncio.run(ask(url, dataset, connections or AT_ONCE))
    print("\n".join(line for each in judgements for line in sentences(each)))
    write_files(SimpleNamespace(json=json), None, judgements)


if __name__ == "__main__":
    main()
