"""Another user of the machine, who tries what a server has: reads JSON from stdin, and prints what succeeded.

{"folders": [...], "files": [...], "sockets": [...]}
"""

import json
import os
import socket
import sys
from contextlib import suppress

NOBODY = 65534
PLANTED = "planted_by_another_user.py"

found = json.load(sys.stdin)
os.setgroups([])
os.setresgid(NOBODY, NOBODY, NOBODY)
os.setresuid(NOBODY, NOBODY, NOBODY)
done = []


def attempt(what, path, action, *arguments):
    with suppress(OSError):
        action(path, *arguments)
        done.append([what, path])


def plant(folder):
    path = os.path.join(folder, PLANTED)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.unlink(path)


def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def replace(path):
    os.rename(path, f"{path}.taken")


for folder in found["folders"]:
    attempt("lists", folder, os.listdir)
    attempt("plants", folder, plant)
    attempt("replaces", folder, replace)
for file in found["files"]:
    for what, flags in (("reads", os.O_RDONLY), ("writes", os.O_WRONLY)):
        attempt(what, file, os.open, flags | os.O_NONBLOCK)
    attempt("replaces", file, replace)
for path in found["sockets"]:
    attempt("connects to", path, connect)
    attempt("replaces", path, replace)
print(json.dumps(done))
