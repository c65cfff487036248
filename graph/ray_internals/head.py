"""Starts the head of a Ray cluster on this machine, and ends: what it started goes on below who called it.

What `ray start --head` does, without what serving one application has no use for: the autoscaler of clouds, the copying
of workers' logs to a terminal, Ray Client, and all of the dashboard but Serve's interface. That is 350 MB of memory.
Everything listens on loopback.
"""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path
from typing import Any, cast

LOOPBACK = "127.0.0.1"
DISCOVERY = "prom_metrics_service_discovery.json"
# Of the dashboard: what `serve deploy` and `serve status` ask.
DASHBOARD_MODULES = ("ServeHead",)


def start(whole_dashboard: bool) -> dict[str, str]:
    """Start it.

    Returns:
        The addresses of the cluster and of its dashboard, and the folder of its session.
    """
    from ray._private import node, parameter, ray_constants, services

    original: Any = services.start_ray_process

    def start_ray_process(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD and not whole_dashboard:
            command = [*command, f"--modules-to-load={','.join(DASHBOARD_MODULES)}"]
        return original(command, process_type, *args, **more)

    services.start_ray_process = start_ray_process
    parameters = cast(Any, parameter.RayParams)(
        node_ip_address=LOOPBACK,
        dashboard_host=LOOPBACK,
        # Ray's own, or where that is taken another.
        dashboard_port=None,
        include_dashboard=True,
        include_log_monitor=False,
        no_monitor=True,
        metrics_export_port=(metrics_port := free_port()),
    )
    head = cast(Any, node.Node)(
        parameters, head=True, shutdown_at_exit=False, spawn_reaper=False, ray_init_cluster=True
    )
    # Where Ray's dashboard would write it, for Prometheus.
    targets = [{"labels": {"job": "ray"}, "targets": [f"{LOOPBACK}:{metrics_port}"]}]
    (Path(head.get_temp_dir_path()) / DISCOVERY).write_text(json.dumps(targets), encoding="utf-8")
    return {
        "address": head.gcs_address,
        "dashboard": f"http://{head.webui_url}",
        "session": head.get_session_dir_path(),
    }


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Start the head and print where it is, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole-dashboard", action="store_true")
    args = parser.parse_args()
    print(json.dumps(start(args.whole_dashboard)), flush=True)


if __name__ == "__main__":
    main()
