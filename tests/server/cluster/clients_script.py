"""Clients that send an image again and again, each on a connection of its own, until stdin ends.

    python clients_script.py IMAGE KEY CLIENTS URL ...

With CLIENTS_CONNECT=anew in the environment, each request has a connection of its own; with CLIENTS_PAUSE_S, each
client waits so long between its requests.

Prints a line when each has been answered, and in the end, as JSON, what they saw.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter

import httpx


def main():
    image, key, count, *urls = sys.argv[1:]
    with open(image, "rb") as file:
        content = file.read()
    headers = {"Content-Type": "image/jpeg", "Authorization": f"Bearer {key}"}
    if os.environ.get("CLIENTS_CONNECT") == "anew":
        headers["Connection"] = "close"
    pause_s = float(os.environ.get("CLIENTS_PAUSE_S", "0"))
    statuses, answered, stop, lock = Counter(), [], threading.Event(), threading.Lock()
    began = threading.Barrier(int(count) + 1)

    def ask(url):
        first = True
        with httpx.Client(headers=headers, timeout=30, trust_env=False) as client:
            while not stop.is_set():
                try:
                    answer = client.post(url, content=content)
                    # An answer may lack a member.
                    outcome = "degraded" if b'"missing"' in answer.content else str(answer.status_code)
                except httpx.TransportError as err:
                    outcome = type(err).__name__
                with lock:
                    statuses[outcome] += 1
                    if outcome in {"200", "degraded"}:
                        answered.append(time.monotonic())
                if first:
                    began.wait()
                    first = False
                stop.wait(pause_s)

    threads = [threading.Thread(target=ask, args=[urls[i % len(urls)]]) for i in range(int(count))]
    for thread in threads:
        thread.start()
    began.wait()
    print("all answered", flush=True)
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    gap = max((later - earlier for earlier, later in itertools.pairwise(answered)), default=0.0)
    print(json.dumps({"statuses": statuses, "gap_s": gap}))


if __name__ == "__main__":
    main()
