"""Runs `ensemble serve` in a container as cautious clusters start it, by runc: a command in the place of `ensemble`.

    python -m tests.container.run ROOT COMMAND...          ROOT: the unpacked image

The root is read-only, the user is a number without a name, /dev/shm has 64 MiB, and there are 1.5 CPUs, no capabilities
and no new privileges. What a test needs from outside are volumes: its folder ($RAY_TMPDIR), and its models, read-only.
The network is the caller's: test.sh gives it one of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

import yaml

USER = 54321
CPUS = 1.5
SHARED_MIB = 64
PASSED = ("RAY_", "ENSEMBLE_", "PYTHONFAULTHANDLER")


def volume(path, *options):
    return {"destination": str(path), "type": "bind", "source": str(path), "options": ["rbind", *options]}


def volumes(command):
    """The folder of the server, and the models that its configuration names; none for an image's own command."""
    if "RAY_TMPDIR" not in os.environ:
        return []
    folder = Path(os.environ["RAY_TMPDIR"])
    # Ray's token, which a driver outside has, too.
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(shutil.copy(os.environ["RAY_AUTH_TOKEN_PATH"], folder / "token"))
    subprocess.run(["chown", "--recursive", f"{USER}:0", folder], check=True)
    application = yaml.safe_load(Path(command[-1]).read_text())["applications"][0]
    models = application["args"]["model_repository"]
    subprocess.run(["chmod", "--recursive", "a+rX", models], check=True)
    return [volume(folder, "rw"), volume(models, "ro")]


def specification(root, command):
    """The configuration of the container, from runc's own defaults."""
    config = json.loads((Path.cwd() / "config.json").read_text())
    mounted = volumes(command)
    home = os.environ.get("RAY_TMPDIR", "/home/ensemble")
    passed = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(PASSED)]
    config["process"] |= {
        "terminal": False,
        "user": {"uid": USER, "gid": 0},
        "args": command,
        "env": ["PATH=/opt/ensemble/bin:/usr/local/bin:/usr/bin:/bin", f"HOME={home}", *passed],
        "cwd": home,
        "capabilities": {},
        # As Docker sets them, as far as this machine allows it.
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": min(524_288, getrlimit(RLIMIT_NOFILE)[1])}],
        "noNewPrivileges": True,
    }
    config["root"] = {"path": os.path.realpath(root), "readonly": True}
    [shared] = [each for each in config["mounts"] if each["destination"] == "/dev/shm"]
    shared["options"] = [f"size={SHARED_MIB * 1024}k", *(each for each in shared["options"] if "size=" not in each)]
    temporary = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}
    config["mounts"] += [temporary, *mounted]
    config["linux"]["namespaces"] = [each for each in config["linux"]["namespaces"] if each["type"] != "network"]
    config["linux"]["resources"]["cpu"] = {"quota": int(CPUS * 100_000), "period": 100_000}
    return config


def main():
    root, *command = sys.argv[1:]
    # Below the folder of test.sh, which is removed.
    bundle = tempfile.mkdtemp(dir=Path(root).parent)
    os.chdir(bundle)
    subprocess.run(["runc", "spec"], check=True)
    Path("config.json").write_text(json.dumps(specification(Path(root), command)))
    # runc hands on signals to the command, and ends with its status.
    os.execvp("runc", ["runc", "run", f"ensemble-{os.getpid()}"])


if __name__ == "__main__":
    main()
