"""A model repository in a bucket that s3fs mounts: a server starts from it, and loads a version that is copied into it.

    python -m tests.conditions.mounted

Needs root, /dev/fuse, and Debian's s3fs and fuse3. The bucket is moto's.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.levels import level
from tests.model_sources import emulator
from tests.networks import brightness, constant, one_hot, store
from tests.server.load import Load
from tests.server.server import Server, config, eventually, post


@contextmanager
def mounted(folder):
    """A folder that s3fs mounts."""
    (secret := folder / "secret").touch(0o600)
    secret.write_text("test:test")
    (place := folder / "mounted").mkdir()
    with emulator("s3", folder / "log") as url:
        assert httpx.put(f"{url}/models", trust_env=False).is_success
        options = f"passwd_file={secret},url={url},use_path_request_style"
        subprocess.run(["s3fs", "models", place, "-o", options], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


def main():
    with tempfile.TemporaryDirectory() as name, mounted(Path(name)) as place:
        store(Path(name) / "local", "m", brightness(), 1)
        second = store(Path(name) / "local", "m", constant(one_hot(2)), 2)
        shutil.copytree(second.with_name("1"), place / "m" / "1")
        file = place / "m" / "1" / "model.bin"
        print("times have fractions:", any(each.stat().st_mtime_ns % 10**9 for each in file.parent.iterdir()))
        os.sync()
        content = config(place, "inline", members=("m",))
        content["applications"][0]["args"]["members"][0]["version_policy"] = "latest"
        with Server(content) as server:
            print("started, version", post(server, level(10)).json()["model_versions"]["m"])
            with Load(server) as load:
                shutil.copytree(second, place / "m" / "2")
                follows = eventually(lambda: post(server, level(10)).json()["model_versions"]["m"] == 2, 60)
            print("the second version answers:", follows, dict(load.statuses))
            print(*(line for line in server.log().splitlines() if "WARN" in line or "ERROR" in line), sep="\n")


if __name__ == "__main__":
    main()
