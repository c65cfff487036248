"""Says of each shadow of a running server how often it agreed, and whether it should be promoted.

    ensemble shadow http://127.0.0.1:8000
    ensemble shadow http://127.0.0.1:8000 --data test.zip --limit 2000

It reads what `/stats` has counted since the start. With --data it first sends labelled images and then their labels,
and tells of these alone; the configuration needs `feedback` for that. "promote" and "don't" are McNemar's verdict on
the images of which the label is known, exact, at 5 %; "need N more" labelled images, where they don't tell yet.

A server that asks for a key finds it in the environment, ENSEMBLE_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from graph.flows.interval import wilson
from scripts.classify import authorization
from scripts.dataset import Dataset
from scripts.errors import ScriptError, check_writable, positive, told_in_one_line
from scripts.shadow.verdict import verdict

TIMEOUT_S = 60.0
# Labels in a request, and how long a shadow may take for what it has under way.
LABELS_AT_ONCE = 500
SETTLED_S = 10.0
PAIRS = ("both", "shadow_only", "other_only", "neither")

# By the shadow and what it is compared with: agreed, compared, and the four counts of `PAIRS`.
Counted = dict[tuple[str, str], list[int]]


def counted(stats: Mapping[str, Any]) -> Counted:
    """What `/stats` has of each shadow.

    Raises:
        ScriptError: there is no shadow.
    """
    shadows = (stats.get("rollout") or {}).get("shadows") or {}
    if not shadows:
        raise ScriptError("the server has no shadow; give it a member with `role: shadow` (docs/rollout.md)")
    return {
        (name, other): [agreed["count"], agreed["total"], *(told["labelled"].get(other, {}).get(p, 0) for p in PAIRS)]
        for name, told in shadows.items()
        for other, agreed in (told["agreed"] or {"ensemble": {"count": 0, "total": 0}}).items()
    }


def since(now: Counted, before: Counted) -> Counted:
    """What has been counted since then."""
    nothing = [0] * (2 + len(PAIRS))
    return {who: [a - b for a, b in zip(counts, before.get(who, nothing), strict=True)] for who, counts in now.items()}


def judged(found: Counted) -> list[dict[str, Any]]:
    """Of each shadow and what it is compared with the agreement, its interval, and the verdict."""
    told = []
    for (name, other), (agreed, compared, *pairs) in found.items():
        low, share, high = wilson(agreed, compared)
        result: dict[str, Any] = {"shadow": name, "other": other, "compared": compared}
        if compared:
            result |= {"agreement": round(share, 4), "low": round(low, 4), "high": round(high, 4)}
        if sum(pairs):
            found_ = verdict(*pairs)
            result |= dict(zip(PAIRS, pairs, strict=True))
            result |= {"p": float(f"{found_.p:.2g}"), "verdict": str(found_), "more": found_.more}
        told.append(result)
    return told


def sentences(told: Mapping[str, Any]) -> list[str]:
    """The same in words."""
    who = f"{told['shadow']} and {told['other']}"
    if not told["compared"]:
        return [f"{who}: nothing was compared yet"]
    agreed = f"{told['agreement']:.2%} ({told['low']:.2%} to {told['high']:.2%})"
    lines = [f"{who}: agree on {agreed} of {told['compared']:,} images"]
    if "verdict" not in told:
        return [*lines, "  no label is known: POST /feedback tells them, or --data sends images that have some"]
    labelled = sum(told[name] for name in PAIRS)
    right = told["both"] + told["shadow_only"], told["both"] + told["other_only"]
    return [
        *lines,
        f"  of {labelled:,} labelled: {told['shadow']} is right on {right[0] / labelled:.2%}, the other on "
        f"{right[1] / labelled:.2%}; it alone on {told['shadow_only']:,}, the other alone on {told['other_only']:,}",
        f"  {told['verdict']} (p = {told['p']})",
    ]


async def stats(client: httpx.AsyncClient) -> dict[str, Any]:
    """What the server tells of itself."""
    response = await client.get("/stats")
    if response.status_code != httpx.codes.OK:
        raise ScriptError(f"{client.base_url}stats answered {response.status_code}: {response.text[:200]}")
    told: dict[str, Any] = response.json()
    return told


async def send(client: httpx.AsyncClient, dataset: Dataset, connections: int) -> None:
    """Send labelled images, then their labels, and wait until what shadows have under way is over."""
    images = dataset.read()
    labels: list[dict[str, str]] = []

    async def work() -> None:
        for image, label in images:
            request = uuid4().hex
            response = await client.post("/classify", content=image, headers={"X-Request-Id": request})
            if response.status_code == httpx.codes.OK:
                labels.append({"request_id": request, "label": label})
            elif response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise ScriptError(f"{client.base_url} answered {response.status_code}: {response.text[:200]}")
            if len(labels) >= LABELS_AT_ONCE:
                await tell(client, labels)

    await asyncio.gather(*(work() for _ in range(connections)))
    await tell(client, labels)
    give_up = time.monotonic() + SETTLED_S
    before, now = None, counted(await stats(client))
    while now != before and time.monotonic() < give_up:
        await asyncio.sleep(1)
        before, now = now, counted(await stats(client))


async def tell(client: httpx.AsyncClient, labels: list[dict[str, str]]) -> None:
    """Tell labels, and forget them."""
    lines = "\n".join(map(json.dumps, labels))
    count = len(labels)
    labels.clear()
    if not count:
        return
    headers = {"Content-Type": "application/x-ndjson"}
    response = await client.post("/feedback", content=lines.encode(), headers=headers)
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ScriptError("the server takes no labels; add `feedback: {}` to its configuration (docs/rollout.md)")
    if response.status_code != httpx.codes.OK or response.json()["accepted"] == 0:
        raise ScriptError(f"the server took none of {count} labels: {response.text[:300]}")


async def ask(url: str, dataset: Dataset | None, connections: int) -> list[dict[str, Any]]:
    """What the server says of its shadows, or after the images of a dataset of these.

    Raises:
        ScriptError: it can't be reached, has no shadow, or takes no labels.
    """
    try:
        async with httpx.AsyncClient(
            base_url=url, timeout=TIMEOUT_S, headers=authorization(), trust_env=False
        ) as client:
            before = counted(await stats(client))
            if dataset is None:
                return judged(before)
            await send(client, dataset, connections)
            return judged(since(counted(await stats(client)), before))
    except (httpx.HTTPError, httpx.InvalidURL) as err:
        raise ScriptError(f"no answer from {url}: {err or type(err).__name__}; is it serving?") from err


def main() -> None:
    """Parse the command line, ask and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server's root")
    parser.add_argument("--data", type=Path, metavar="PATH", help="zip or folder of <class>/*.jpg to send")
    parser.add_argument("--limit", type=positive, metavar="N", help="images of it; default: all")
    parser.add_argument("--connections", type=positive, default=4, help="requests in flight, with --data; default: 4")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    check_writable(parser, args.json)
    with told_in_one_line():
        dataset = None if args.data is None else Dataset.open(args.data)
        if dataset is not None and args.limit is not None and args.limit < len(dataset):
            # Of every class, and the same ones each time.
            dataset = dataset.hold_out(args.limit)[1]
        told = asyncio.run(ask(args.url, dataset, args.connections))
        print("\n".join(line for each in told for line in sentences(each)))
        if args.json is not None:
            args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
