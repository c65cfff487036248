"""Serves an application in the foreground, in Ray Serve's fast mode, until Ctrl-C.

    ensemble serve serve_config.yaml
    ensemble serve one.onnx two.onnx --data images/     # or --labels names.txt

The command does the work of `serve run`. Before that it checks the configuration and its models, ends the processes of
a killed server, sets Ray's environment variables, and turns on Ray's token authentication. It prints `Ready` once every
member has answered.

Files of models become members, as `ensemble init` would prepare and configure them, in a folder that lasts as long as
the server. The command prints the configuration.
"""

import argparse
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from scripts.flags import described
from scripts.shipped import shipped

# Suffixes of the files of models; a folder is an exporter's.
MODELS = frozenset({".onnx", ".xml", ".tflite", ".pdmodel"})


def main() -> None:
    """Parse the command line and serve."""
    # Until the server handles signals itself, nothing has been started that would have to be ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    args = parser().parse_args()

    from deployments.contract.errors import ConfigurationError
    from scripts.errors import ScriptError, errors_in_one_line
    from scripts.serve.environment import check_propagators
    from scripts.serve.machines import enter
    from scripts.serve.server import serve

    with errors_in_one_line():
        check_propagators()
    try:
        enter(args.host_address, args.cluster_port)
        with configuration(args) as file:
            serve(file, args.whole_dashboard, args.without_keys, args.ports_from)
    except (ScriptError, ConfigurationError, OSError, ValueError) as err:
        sys.exit(f"{' '.join(map(str, args.config))}: {err}")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = described(__doc__)
    made.add_argument(
        "config",
        type=Path,
        nargs="*",
        default=[shipped("serve_config.yaml")],
        help="a Serve config file (default: the bundled one), or files of models",
    )
    made.add_argument("--data", type=Path, help="labelled images, <class>/*.jpg, which decide how models are prepared")
    made.add_argument("--labels", type=Path, help="class names of the models, one on each line, in order of index")
    made.add_argument(
        "--whole-dashboard",
        action="store_true",
        help="start Ray's dashboard with all its pages, which takes more memory",
    )
    made.add_argument(
        "--without-keys", action="store_true", help="let other machines reach the server without an API key"
    )
    made.add_argument(
        "--ports-from",
        type=int,
        metavar="N",
        help="listen on N (HTTP), N + 1 (gRPC), N + 2 and N + 3 (metrics of HAProxy and of Ray), beside another server",
    )
    made.add_argument(
        "--host-address",
        metavar="IP",
        help="this machine's address, for clients and for other machines that join (docs/cluster.md)",
    )
    made.add_argument(
        "--cluster-port", type=int, metavar="N", help="the port at which other machines join (default: 6379)"
    )
    return made


def configuration(args: argparse.Namespace) -> AbstractContextManager[Path]:
    """Give the configuration file of a command line; raises ValueError for what names none."""
    from deployments.entry_points import CONFIGURATIONS, find

    files: list[Path] = args.config
    if any(each.suffix in MODELS or each.is_dir() for each in files):
        made: AbstractContextManager[Path] = find(CONFIGURATIONS, "models")(files, args.data, args.labels)
        return made
    if len(files) > 1 or args.data or args.labels:
        raise ValueError("one configuration is served; --data and --labels are for files of models")
    return nullcontext(files[0])


if __name__ == "__main__":
    main()
