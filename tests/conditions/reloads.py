"""A member whose version changes again and again under load: what is answered, and the memory of all processes.

    python -m tests.conditions.reloads [COUNT]        default: 200

The bundled models; the odd loads are of the first version, the even ones of the second.
"""

import sys
import threading
from collections import Counter
from contextlib import suppress

import httpx
import psutil

from tests.conftest import ROOT
from tests.server.server import Server, config

LOADS = int((sys.argv[1:] or [200])[0])
ROWS = 10


def memory(server):
    """The memory of a server's processes, MB, by what they are: proportional shares."""
    process, found = psutil.Process(server.process.pid), Counter()
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            found[" ".join(each.cmdline())[:40]] += each.memory_full_info().pss / 1e6
    return found


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
                used = memory(server)
                most = {name: round(megabytes) for name, megabytes in used.most_common(3)}
                print(f"{number:6} {used.total():11.0f}  {dict(seen)} {most}", flush=True)
            loaded = httpx.post(load, json={"parameters": {"version": 1 + number % 2}}, timeout=60)
            assert loaded.is_success, loaded.text
        end.set()
        asking.join()
        print(dict(seen))


if __name__ == "__main__":
    main()
