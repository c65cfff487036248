"""Serves an application in the foreground, in Ray Serve's fast mode, until Ctrl-C.

    ensemble serve serve_config.yaml

The command does the work of `serve run`. Before that it checks the configuration and its models, ends the processes of
a killed server, sets Ray's environment variables, and turns on Ray's token authentication. It prints `Ready` once every
member has answered.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from scripts.flags import described
from scripts.shipped import shipped


def main() -> None:
    """Parse the command line and serve."""
    # Until the server handles signals itself, nothing has been started that would have to be ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = described(__doc__)
    parser.add_argument(
        "config",
        type=Path,
        nargs="?",
        default=shipped("serve_config.yaml"),
        help="a Serve config file (default: the bundled one)",
    )
    parser.add_argument(
        "--whole-dashboard",
        action="store_true",
        help="start Ray's dashboard with all its pages, which takes more memory",
    )
    parser.add_argument(
        "--without-keys", action="store_true", help="let other machines reach the server without an API key"
    )
    parser.add_argument(
        "--ports-from",
        type=int,
        metavar="N",
        help="listen on N (HTTP), N + 1 (gRPC), N + 2 and N + 3 (metrics of HAProxy and of Ray), beside another server",
    )
    parser.add_argument(
        "--host-address",
        metavar="IP",
        help="this machine's address, for clients and for other machines that join (docs/cluster.md)",
    )
    parser.add_argument(
        "--cluster-port", type=int, metavar="N", help="the port at which other machines join (default: 6379)"
    )
    parser.add_argument("--json-logs", action="store_true", help="log lines of JSON, with trace ids, in files and here")
    args = parser.parse_args()

    from deployments.contract.errors import ConfigurationError
    from scripts.errors import ScriptError, errors_in_one_line
    from scripts.serve.environment import check_propagators
    from scripts.serve.machines import enter
    from scripts.serve.server import serve

    with errors_in_one_line():
        check_propagators()
    try:
        enter(args.host_address, args.cluster_port)
        serve(args.config, args.whole_dashboard, args.without_keys, args.ports_from, args.json_logs)
    except (ScriptError, ConfigurationError, OSError, ValueError) as err:
        sys.exit(f"{args.config}: {err}")


if __name__ == "__main__":
    main()
