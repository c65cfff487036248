"""The program that Ray starts as its Python interpreter: it asks the fork server, or becomes the interpreter.

    python -I -S fork_client.py SOCKET PYTHON [OPTION ...] SCRIPT ARGUMENT ...

It runs without the `site` module and imports nothing that is not built in, because it is started for each worker.
"""

import _socket
import os
import sys

# Ray's script that makes a worker's runtime environment and then runs the next script, which most need not.
SETUP, WORKER = "setup_worker.py", "default_worker.py"
# Ray's agent, and the module that takes its place.
AGENT, OUR_AGENT = "/dashboard/agent.py", ["-P", "-m", "deployments.ray_internals.agent"]
# The dashboard deploys. Workers on every machine put the working directory of what deploys in front of their import
# path, so it must have no code, and nobody may be able to make it or to write there.
DASHBOARD, NO_CODE = "dashboard.py", "/proc"
CONTEXT = "--serialized-runtime-env-context"
PLAIN = ("--language=PYTHON", f"{CONTEXT}=", f"{CONTEXT}={{}}")
# An argument of the dashboard's if it has no pages: it would only report usage, and Ray goes on without it.
NO_FRONTEND = "--disable-frontend"
# Options of the interpreter that have no effect on one that runs already.
OPTIONS = ("-u", "-P")
# Reads until the end of the connection, and succeeds.
UNTIL_END = "read -r line || :"
# Seconds in which the fork server forks, also if it has to import everything first. After that, a fork of it ends.
FORKED_WITHIN_S = 60


def with_agent(arguments: list[str]) -> list[str]:
    """Put this project's agent in the place of Ray's."""
    return [part for each in arguments for part in (OUR_AGENT if each.endswith(AGENT) else [each])]


def script_of(arguments: list[str]) -> list[str] | None:
    """Find the script, or `-m` and a module, and its arguments; None if the interpreter itself must be started."""
    rest = [*arguments]
    while rest and rest[0] in OPTIONS:
        rest = rest[1:]
    if rest and rest[0].endswith(SETUP):
        rest = [each for each in rest[1:] if each not in PLAIN]
    # A worker with a runtime environment of its own has an interpreter of its own.
    has_own = any(each.startswith(CONTEXT) for each in rest)
    return rest if rest and not has_own and rest[0][-3:] in {"-m", ".py"} else None


def ask(path: str, arguments: list[str]) -> _socket.socket:
    """Ask the fork server to run a script; the connection lasts as long as the process. Raises OSError on failure."""
    pairs = [name + b"=" + value for name, value in os.environb.items()]
    body = b"\0".join([os.getcwdb(), str(len(arguments)).encode(), *map(os.fsencode, arguments), *pairs])
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(FORKED_WITHIN_S)
    connection.connect(path)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    connection.sendmsg([len(body).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    connection.sendall(body)
    # It comes when the process is forked.
    if connection.recv(1) == b"":
        raise OSError("the fork server has ended")
    connection.settimeout(None)
    return connection


def main() -> None:
    """Ask the fork server; without one, become the interpreter.

    A worker reports to the raylet by itself. Whatever else Ray starts is watched by its process, which is this one, and
    so this one ends when the script has ended.
    """
    path, python, *given = sys.argv[1:]
    arguments = with_agent(given)
    if NO_FRONTEND in arguments:
        return
    if any(each.endswith(DASHBOARD) for each in arguments):
        os.chdir(NO_CODE)
    if (script := script_of(arguments)) is not None:
        try:
            connection = ask(path, script)
        except OSError:
            pass
        else:
            if not script[0].endswith(WORKER):
                # A shell waits in less memory than this interpreter.
                os.dup2(connection.fileno(), 0)
                os.execv("/bin/sh", ["sh", "-c", UNTIL_END])  # noqa: S606
            return
    os.execv(python, [python, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
