"""What this project uses beyond Ray's public interface: its own switches, and names, with a fallback for each.

Each part is looked for before it is used. `docs/compatibility.md` says what each one gains.
"""

import logging
import os
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import metadata

logger = logging.getLogger("ray.serve")

# Of Ray's processes; its documentation does not have them.
SWITCHES = {
    # Agents notice the raylet's end by a pipe. Otherwise they look at their parent process five times in two seconds,
    # and the parent of a forked process is not the raylet.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    # The raylet's store of objects is connected to as soon as it listens, not a second later, and for as long as usual.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
    # Ray runs its workers with niceness 15, as work in the background. Replicas answer requests.
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True)
class Internal:
    """Parts of Ray that are not its public interface.

    Attributes:
        instead: what happens without one of them, as the end of a sentence.
        names: each as `module:attribute`.
    """

    instead: str
    names: tuple[str, ...]

    def problem(self) -> str | None:
        """Name the part that the installed Ray lacks, and the consequence; None if Ray has everything."""
        for name in self.names:
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                return f"Ray {metadata.version('ray')} has no {name}: {self.instead}"
        return None


@cache
def has(internal: Internal) -> bool:
    """Look for the used names of Ray; log a warning, once in this process, if something is missing."""
    if (problem := internal.problem()) is not None:
        logger.warning(problem)
    return problem is None


SERVE_INTERFACE = Internal(
    "Ray's whole dashboard is started, which takes about 200 MB more",
    (
        "ray._raylet:GcsClient",
        "ray._raylet:setproctitle",
        "ray._private.ray_constants:DASHBOARD_ADDRESS",
        "ray._private.ray_constants:DASHBOARD_CLIENT_MAX_SIZE",
        "ray._private.ray_constants:KV_NAMESPACE_DASHBOARD",
        "ray._private.authentication.http_token_authentication:get_token_auth_middleware",
        "ray.dashboard.optional_utils:get_browser_request_middleware",
        "ray.dashboard.modules.serve.serve_head:ServeHead",
        "ray.dashboard.subprocesses.module:SubprocessModuleConfig",
    ),
)
FORKS = Internal(
    "each of Ray's processes is started by itself, which takes longer and more memory",
    (
        "ray.actor:ActorClassID.from_random",
        "ray.actor:ActorClassID.size",
        "ray.dashboard.consts:PARENT_HEALTH_CHECK_BY_PIPE",
    ),
)
WORKER_HOOK = Internal(
    "packages in the folder that is served from come before installed ones of the same name",
    ("ray._private.ray_constants:WORKER_PROCESS_SETUP_HOOK_ENV_VAR",),
)
START_HOOK = Internal(
    "the server of Ray Client is started, too, which takes about 50 MB more",
    ("ray._private.ray_constants:RAY_START_HOOK",),
)
AGENT = Internal(
    "metrics have series for each process, which stay when the process has ended",
    (
        "ray.dashboard.modules.reporter.reporter_agent:OpenTelemetryMetricRecorder.register_gauge_metric",
        "ray.dashboard.modules.reporter.reporter_agent:OpenTelemetryMetricRecorder.set_metric_value",
        "ray.dashboard.modules.reporter.reporter_agent:OpenTelemetryMetricRecorder.record_histogram_aggregated_batch",
    ),
)
SERVE_CLIENT = Internal(
    "`/stats` does not count replicas, and clients' shared memory is refused",
    (
        "ray.serve.context:_get_global_client",
        "ray.serve._private.client:ServeControllerClient.http_config",
        "ray.serve._private.client:ServeControllerClient.get_serve_details",
    ),
)
DASHBOARD_ADDRESS = Internal(
    "features change the configuration only while Serve's REST interface has Ray's own port, 8265",
    ("ray.experimental.internal_kv:_internal_kv_get",),
)


def set_switches() -> None:
    """Set the switches in the environment, except switches that it already has."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
