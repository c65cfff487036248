"""The command `ensemble shadow`: a running server's counts of its shadows and canaries, and the verdict."""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import click
from tqdm import tqdm

from deployments.contract.names import INGRESS
from ensemble_models.client import KEY, no_answer
from ensemble_models.dataset import Dataset
from ensemble_models.options import FILE, POSITIVE, Command, file_options, option, write_files
from ensemble_models.statistics import verdict
from ensemble_serving.transports import NoResponse, Request, Server, Transport, connect
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

Judgement = dict[str, Any]


def judged(stats: Mapping[str, Any]) -> list[Judgement]:
    """Judge each shadow against each member it is compared with, and report each canary, by `/stats`.

    Raises:
        ScriptError: there is neither a shadow nor a canary.
    """
    rollout = stats.get("rollout") or {}
    shadows, canaries = rollout.get("shadows") or {}, rollout.get("canaries") or {}
    if not shadows and not canaries:
        raise ScriptError(
            "the server has no shadow and no canary; give it a member with `role: shadow` or `canary` (docs/rollout.md)"
        )
    found = [
        {"shadow": name, "other": other, **of_shadow(agreed, each["labelled"].get(other, {}))}
        for name, each in shadows.items()
        for other, agreed in (each["agreed"] or {"ensemble": {"total": 0}}).items()
    ]
    return [*found, *(of_canary(*each) for each in canaries.items())]


def of_shadow(agreed: Mapping[str, Any], labelled: Mapping[str, int]) -> Judgement:
    """Judge a shadow by its agreement with another member, and by which of them true labels show to be right."""
    result: Judgement = {"compared": agreed["total"]}
    if agreed["total"]:
        result |= {"agreement": agreed["share"], "low": agreed["low"], "high": agreed["high"]}
    if labelled:
        pairs = {name: labelled[name] for name in PAIRS}
        reached = verdict(*pairs.values())
        result |= {**pairs, "p": float(f"{reached.p:.2g}"), "verdict": str(reached), "more": reached.more}
    return result


def of_canary(name: str, canary: Mapping[str, Any]) -> Judgement:
    """Report a member's canary."""
    agreed = {which: canary["agreed"][which] for which in ("share", "low", "high")}
    verdict = {which: canary[which] for which in ("rolled_back", "found")}
    return {"canary": name, "compared": canary["agreed"]["total"], **agreed, **canary["labelled"], **verdict}


def sentences(judgement: Judgement) -> Iterator[str]:
    """Describe a judgement in words."""
    share = judgement.get("agreement", judgement.get("share"))
    agreed = None
    if compared := judgement["compared"]:
        agreed = f"{share:.2%} ({judgement['low']:.2%} to {judgement['high']:.2%}) of {compared:,} images"
    if "canary" in judgement:
        said = f"agrees with the stable version on {agreed}" if agreed else "nothing was compared yet"
        yield f"canary of {judgement['canary']}: {said}"
        alone = f"{judgement['canary_only']:,}, the stable version alone on {judgement['stable_only']:,}"
        yield f"  by true labels the canary alone is right on {alone}"
        verdict = f"rolled back for its {judgement['rolled_back']}" if judgement["rolled_back"] else "goes on"
        yield f"  {verdict}{': ' if judgement['found'] else ''}{judgement['found']}"
        return
    who = f"{judgement['shadow']} and {judgement['other']}"
    if not agreed:
        yield f"{who}: nothing was compared yet (images that a canary answers are left out)"
        return
    yield f"{who}: agree on {agreed}"
    if "verdict" not in judgement:
        yield "  no label is known: POST /feedback takes labels, and --data sends images that have some"
        return
    both, shadow_only, other_only, neither = (judgement[name] for name in PAIRS)
    labelled = both + shadow_only + other_only + neither
    yield (
        f"  of {labelled:,} labelled: {judgement['shadow']} is right on {(both + shadow_only) / labelled:.2%}, "
        f"the other on {(both + other_only) / labelled:.2%}; it alone on {shadow_only:,}, "
        f"the other alone on {other_only:,}"
    )
    yield f"  {judgement['verdict']} (p = {judgement['p']})"


async def stats(server: Transport) -> dict[str, Any]:
    """Get `/stats` of an ingress replica; raises ScriptError for another server's answer."""
    response = await server.send(Request("/stats", method="GET"))
    if not response.ok:
        raise ScriptError(f"/stats answered {response.status}: {response.body[:200]!r}")
    try:
        found: dict[str, Any] = json.loads(response.body)
    except ValueError as err:
        raise ScriptError(f"/stats answered {response.body[:200]!r}; is this the ensemble?") from err
    judged(found)
    return found


async def send(server: Transport, dataset: Dataset, connections: int) -> None:
    """Send labelled images, then their labels, and wait until the shadows have answered."""
    labels = list[dict[str, str]]()
    images, refused = dataset.read(), 0
    with tqdm(total=len(dataset), unit="image", mininterval=0.5, delay=1, leave=False, disable=None) as bar:
        while some := [(uuid4().hex, *image) for image in islice(images, connections)]:
            sent = [server.send(Request("/classify", image, (("x-request-id", name),))) for name, image, _ in some]
            for (name, _, label), response in zip(some, await asyncio.gather(*sent), strict=True):
                if response.ok:
                    labels.append({"request_id": name, "label": label})
                elif response.status in OVERLOADED:
                    refused += 1
                else:
                    raise ScriptError(f"the server answered an image with {response.status}: {response.body[:200]!r}")
            if len(labels) >= LABELS_AT_ONCE:
                await send_labels(server, labels)
                labels = []
            bar.update(len(some))
    await send_labels(server, labels)
    if refused:
        print(f"{refused:,} of {len(dataset):,} images were refused and left out; lower --connections")
    give_up = time.monotonic() + SETTLED_S
    before, now = None, await stats(server)
    while now["rollout"] != before and time.monotonic() < give_up:
        await asyncio.sleep(1)
        before, now = now["rollout"], await stats(server)


async def send_labels(server: Transport, labels: Sequence[Mapping[str, str]]) -> None:
    """Send labels, if there are any."""
    if not labels:
        return
    headers = (("content-type", "application/x-ndjson"),)
    response = await server.send(Request("/feedback", "\n".join(map(json.dumps, labels)).encode(), headers))
    if response.status == NOT_FOUND:
        raise ScriptError("the server takes no labels; add `feedback: {}` to its configuration (docs/rollout.md)")
    if not response.ok or json.loads(response.body)["accepted"] == 0:
        raise ScriptError(f"the server took none of {len(labels)} labels: {response.body[:300]!r}")


async def ask(url: str, dataset: Dataset | None, connections: int) -> list[Judgement]:
    """Judge a server's shadows and canaries by all their images, after sending a dataset if there is one.

    Raises:
        ScriptError: it can't be reached, has neither, takes no labels, or several replicas count.
    """
    key = os.environ.get(KEY)
    if url.startswith("grpc"):
        raise ScriptError(f"{url}: /stats is answered over HTTP alone; name the server's http:// or https:// address")
    try:
        server = connect(Server(url, headers=(("authorization", f"Bearer {key}"),) if key else ()))
    except ValueError as err:
        raise ScriptError(f"{url}: {err}") from err
    try:
        running = ((await stats(server)).get("replicas") or {}).get(INGRESS, {}).get("RUNNING", 1)
        if running > 1 and dataset is not None:
            raise ScriptError(SEVERAL)
        if running > 1:
            print(f"/stats was answered by one of {running} replicas of the ingress, each with counts of its own:")
        if dataset is not None:
            await send(server, dataset, connections)
        return judged(await stats(server))
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
    labelled images, then their labels; the configuration then needs `feedback` and one ingress replica. "promote" and
    "don't" are the verdict of McNemar's exact test, at 5 %, on labelled images. "need N more" estimates how many
    labelled images would decide. Until only one of the two has classified an image correctly, N is the fewest that
    could decide. Images that a canary answered do not count for a shadow. The server decides about canaries.

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
