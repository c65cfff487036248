"""Runs HAProxy in front of the ingress of a Ray that runs already, as a sidecar in a pod (docs/kubernetes.md).

    ENSEMBLE_FRONT=/tmp/ray/front ensemble front --host 0.0.0.0

Ray's processes have the same ENSEMBLE_FRONT, which names the folder of the sockets, in Ray's temporary folder, and
ENSEMBLE_FRONT_APPLICATION, the application's name. Warnings and errors in Ray Serve's logs there are printed as lines
of JSON. SIGTERM makes /v2/health/ready answer 503 for some seconds, for the load balancer in front, before HAProxy
accepts no more connections and ends. TLS is as with `ensemble serve`; gRPC's reflection is off.
"""

import os
from pathlib import Path

from deployments.contract.hosts import LOOPBACK
from deployments.folder_permissions import is_private
from deployments.ingress.listeners.slot import FOLDER
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described
from scripts.serve.environment import raise_file_limit
from scripts.serve.exposure import certificate_named
from scripts.serve.folder import check_place
from scripts.serve.haproxy import HAProxy
from scripts.serve.haproxy_config import Listening
from scripts.serve.logs import Logs
from scripts.serve.ports import check_ports, wanted
from scripts.serve.server import LOOK_EVERY_S, stop_signals


def front(config: dict[str, dict[str, str]]) -> None:
    """Run HAProxy where a Serve config listens, until SIGTERM or Ctrl-C.

    Raises:
        ScriptError: the folder of the sockets or the certificate can't be used, or HAProxy does not start.
    """
    raise_file_limit()
    certificate, folder = certificate_named(config), shared_folder()
    http, grpc, metrics, _ = ports = wanted(config)
    check_ports(*ports[:3])
    with stop_signals() as stop:
        listening = Listening(
            http.host, http.number, grpc.number, metrics.number, certificate, reflects=False, is_balanced=True
        )
        haproxy, logs = HAProxy(folder, listening), Logs(folder.parent / "session_latest", as_json=True)
        try:
            while not stop.wait(LOOK_EVERY_S):
                haproxy.renew()
                logs.print_new()
        finally:
            haproxy.finish()


def shared_folder() -> Path:
    """Make the folder of the sockets.

    Raises:
        ScriptError: no variable names it, or other users could change it.
    """
    if FOLDER not in os.environ:
        raise ScriptError(f"set {FOLDER}, here and for Ray, to a folder for the sockets; it is made")
    folder = Path(os.environ[FOLDER]).absolute()
    folder.mkdir(mode=0o700, exist_ok=True)
    # Everybody may write to a volume of Kubernetes, but only its containers see it. Two volumes may share a device.
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    if not folder.parent.is_mount() and str(folder.parent.resolve()) not in mounts:
        check_place(folder, FOLDER)
    if not is_private(folder):
        raise ScriptError(f"{FOLDER}: {folder} is not a folder of this user alone; remove it, or name another")
    return folder


def main() -> None:
    """Parse the command line and run HAProxy."""
    parser = described(__doc__)
    parser.add_argument("--host", default=LOOPBACK, help=f"the address to listen on (default: {LOOPBACK})")
    args = parser.parse_args()
    with errors_in_one_line():
        front({"http_options": {"host": args.host}})


if __name__ == "__main__":
    main()
