"""What Ray starts in place of a Python process: it has the fork server start that one, or becomes it itself.

    python -I -S fork_client.py SOCKET leave|stay PYTHON SCRIPT ARGUMENT ...

With `stay` it waits for the end of the process, for whoever watches this one. It runs without the `site` module and
imports nothing that is not built in, because it is started for each worker.
"""

import _socket
import os
import sys

# Ray's script that makes a worker's runtime environment and then runs the next script, which most need not.
SETUP = "setup_worker.py"
CONTEXT = "--serialized-runtime-env-context"
PLAIN = ("--language=PYTHON", f"{CONTEXT}=", f"{CONTEXT}={{}}")
# Of the interpreter, without effect on one that runs already.
OPTIONS = ("-u", "-P")


def wanted(arguments: list[str]) -> list[str] | None:
    """The script, or `-m` and a module, and its arguments; None for a worker with a runtime environment of its own."""
    _, *rest = arguments
    while rest[0] in OPTIONS:
        rest = rest[1:]
    if rest[0].endswith(SETUP):
        rest = [each for each in rest[1:] if each not in PLAIN]
    return None if any(each.startswith(CONTEXT) for each in rest) else rest


def ask(path: str, arguments: list[str]) -> _socket.socket:
    """Have the fork server run a script; the connection lasts as long as the process. Raises OSError if it can't."""
    pairs = [name + b"=" + value for name, value in os.environb.items()]
    body = b"\0".join([os.getcwdb(), str(len(arguments)).encode(), *map(os.fsencode, arguments), *pairs])
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(path)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    connection.sendmsg([len(body).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    connection.sendall(body)
    # It comes when the process is forked.
    if connection.recv(1) == b"":
        raise OSError("the fork server has ended")
    return connection


def main() -> None:
    """Ask, and stay or leave; without a fork server, become the process."""
    path, mode, *arguments = sys.argv[1:]
    if (asked := wanted(arguments)) is not None:
        try:
            connection = ask(path, asked)
        except OSError:
            pass
        else:
            if mode == "stay":
                connection.recv(1)
            return
    os.execv(arguments[0], arguments)  # noqa: S606


if __name__ == "__main__":
    main()
