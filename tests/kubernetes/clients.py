"""Clients of the service that is proved, and the rows of what they saw."""

import json
import os
import subprocess
import time
from contextlib import contextmanager

from tests.conftest import ROOT
from tests.kubernetes.node import inside
from tests.kubernetes.release import IMAGE, address

CLIENTS = 2
ASK = """
import asyncio, sys
from ensemble_serving.client import Client

async def ask():
    async with Client(sys.argv[1], key=sys.argv[2], ca_file=(sys.argv[4:] or [None])[0]) as client, asyncio.timeout(60):
        print((await client.classify(open(sys.argv[3], "rb").read())).label)

asyncio.run(ask())
"""
# By gRPC, each call on one connection that is kept; no call is sent again.
CALLS = """
import asyncio, collections, json, os, sys, time
from ensemble_serving.client import Client

async def call():
    image, seen, last, gap = open(sys.argv[3], "rb").read(), collections.Counter(), 0, 0.0
    end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with Client(sys.argv[1], key=sys.argv[2], patience_s=0, reconnect_s=0) as client:
        while not end.done():
            try:
                await client.classify(image)
                gap, last = max(gap, time.monotonic() - (last or time.monotonic())), time.monotonic()
                seen["200"] += 1
            except Exception as err:
                seen[type(err).__name__] += 1
                await asyncio.sleep(0.05)
            if sum(seen.values()) == 1:
                print("answered", flush=True)
            await asyncio.sleep(float(os.environ["CLIENTS_PAUSE_S"]))
    print(json.dumps({"statuses": seen, "gap_s": gap}))

asyncio.run(call())
"""
rows = []


def add(what, seconds, **seen):
    rows.append({"what": what, "seconds": round(seconds, 1), **seen})
    print(rows[-1], flush=True)


@contextmanager
def clients(what, key, count=CLIENTS, pause_s=0.0):
    """Clients that send an image again and again; in the end a row for each kind says what they saw.

    Some open a connection for each request, as one behind a proxy may see it; some keep theirs; one calls by gRPC.
    """
    script = str(ROOT / "tests" / "server" / "cluster" / "clients_script.py")
    command = (script, IMAGE, key, str(count), f"http://{address()}:8000/classify")
    variables = {**os.environ, "CLIENTS_PAUSE_S": str(pause_s)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = {
        connections: inside(*command, env={**variables, "CLIENTS_CONNECT": connections}, **pipes)
        for connections in ("anew", "kept")
    }
    processes["gRPC"] = inside("-c", CALLS, f"grpc://{address()}:9000", key, IMAGE, env=variables, **pipes)
    for process in processes.values():
        process.stdout.readline()
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    for connections, process in processes.items():
        seen = json.loads(process.communicate("")[0])
        answered = seen["statuses"].pop("200", 0)
        failed, gap = seen["statuses"], round(seen["gap_s"], 1)
        add(what, seconds, connections=connections, answered=answered, failed=failed, gap_s=gap)


def answers(key, *ca):
    """Whether the service answers over HTTP and gRPC. The first connection after Ready may be refused."""
    secured = "s" if ca else ""
    for url in (f"http{secured}://{address()}:8000", f"grpc{secured}://{address()}:9000"):
        asked = inside("-c", ASK, url, key, IMAGE, *ca, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if asked.communicate()[0].strip() != "cat":
            return False
    return True
