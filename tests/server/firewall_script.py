"""Two machines, each a network namespace, on one cable: who reaches what, without the rules and with them.

    unshare --map-root-user --net python firewall_script.py RULES PORT ...

Prints JSON: by what was tried, the ports that answered.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

SERVER, CLIENT, SERVER6 = "10.99.0.1", "10.99.0.2", "fd99::1"
CONNECT = """
import json, socket, sys
host, *ports = sys.argv[1:]
def answers(port):
    try:
        socket.create_connection((host, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True
print(json.dumps([port for port in map(int, ports) if answers(port)]))
"""


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def namespace(process):
    return Path(f"/proc/{process.pid}/ns/net").readlink()


def main():
    rules, *ports = sys.argv[1:]
    other = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    here = Path("/proc/self/ns/net").readlink()
    while namespace(other) == here:
        pass
    there = ["nsenter", f"--target={other.pid}", "--net"]
    run("ip", "link", "add", "server", "type", "veth", "peer", "name", "client", "netns", str(other.pid))
    for prefix, name, address, address6 in (([], "server", SERVER, SERVER6), (there, "client", CLIENT, "fd99::2")):
        run(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
        run(*prefix, "ip", "address", "add", f"{address6}/64", "dev", name, "nodad")
        run(*prefix, "ip", "link", "set", name, "up")
    run("ip", "link", "set", "lo", "up")
    # As Serve's gRPC does, on every address of either family.
    listeners = [socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True) for port in ports]

    def reached(host, prefix=there):
        return json.loads(run(*prefix, sys.executable, "-c", CONNECT, host, *ports))

    seen = {"open": reached(SERVER)}
    for _ in range(2):
        run("nft", "--file", rules)
    seen |= {"closed": reached(SERVER), "closed by IPv6": reached(SERVER6)}
    seen |= {"from here": reached(SERVER, []), "from loopback": reached("127.0.0.1", [])}
    run("nft", "add", "element", "inet", "ensemble", "machines", f"{{ {CLIENT} }}")
    seen["a machine of the cluster"] = reached(SERVER)
    run("nft", "delete", "table", "inet", "ensemble")
    seen["open again"] = reached(SERVER)
    print(json.dumps(seen))
    for listener in listeners:
        listener.close()
    other.stdin.close()
    other.wait()


if __name__ == "__main__":
    main()
