"""Serves an application in the foreground, in Ray Serve's fast mode, until Ctrl-C.

    ensemble serve serve_config.yaml

What `serve run` does, and besides: sets the switches that Ray reads before it starts, turns Ray's token authentication
on, looks whether the configuration and its models fit before Ray starts, clears away what a killed run left on the
ports, waits until every member has answered, and says so.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from scripts.shipped import shipped


def main() -> None:
    """Parse the command line and serve."""
    # Until the server heeds signals itself, nothing is started, and there is nothing to tell about the end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "config", type=Path, nargs="?", default=shipped("serve_config.yaml"), help="a Serve config file (default: ours)"
    )
    parser.add_argument(
        "--whole-dashboard", action="store_true", help="Ray's dashboard with all its pages: 170 MB more"
    )
    parser.add_argument(
        "--without-keys", action="store_true", help="other machines may reach it, and nobody is asked for a key"
    )
    args = parser.parse_args()

    import yaml

    from deployments.contract.errors import ConfigurationError
    from scripts.errors import ScriptError
    from scripts.serve.server import serve

    try:
        serve(args.config, args.whole_dashboard, args.without_keys)
    except (ScriptError, ConfigurationError, OSError, ValueError, yaml.YAMLError) as err:
        sys.exit(f"{args.config}: {err}")


if __name__ == "__main__":
    main()
