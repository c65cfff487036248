"""A member whose version changes again and again under load: what is answered, and the memory of all processes.

    python -m tests.conditions.reloads [COUNT]        default: 200

The bundled models; the odd loads are of the first version, the even ones of the second.
"""

import sys
import threading
from collections import Counter

import httpx
import psutil

from tests.conftest import ROOT
from tests.server.server import Server, config

LOADS = int((sys.argv[1:] or [200])[0])
ROWS = 10


def memory(server):
    """The memory of all processes of a server, MB: proportional shares."""
    process = psutil.Process(server.process.pid)
    found = [process, *process.children(recursive=True)]
    return sum(each.memory_full_info().pss for each in found if each.is_running()) / 1e6


def ask(server, seen, end):
    image = (ROOT / "tests" / "cat.jpg").read_bytes()
    with httpx.Client(trust_env=False, timeout=60) as client:
        while not end.is_set():
            answer = client.post(f"{server.url}/classify", content=image, headers={"Content-Type": "image/jpeg"})
            label = answer.json().get("label")
            seen[answer.status_code, label, str(answer.json().get("model_versions", {}).get("resnet"))] += 1


def main():
    args = {"access": {"operators": "anyone"}}
    content = config(ROOT / "models", "inline", members=("resnet", "densenet"), **args)
    with Server(content) as server:
        load, seen, end = f"{server.url}/v2/repository/models/resnet/load", Counter(), threading.Event()
        asking = threading.Thread(target=ask, args=(server, seen, end))
        asking.start()
        print(f"{'loads':>6} {'memory, MB':>11}  answers by status, label and version")
        for number in range(LOADS + 1):
            if number % (LOADS // ROWS) == 0:
                print(f"{number:6} {memory(server):11.0f}  {dict(seen)}", flush=True)
            loaded = httpx.post(load, json={"parameters": {"version": 1 + number % 2}}, timeout=60)
            assert loaded.is_success, loaded.text
        end.set()
        asking.join()
        print(dict(seen))


if __name__ == "__main__":
    main()
