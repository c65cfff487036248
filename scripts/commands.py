"""The commands of the server's own distribution: in groups, each with its module and one line of help."""

COMMANDS = {
    "Serve": {
        "serve": ("scripts.serve.__main__", "Serves an application in the foreground until Ctrl-C."),
        "front": ("scripts.serve.sidecar", "Runs HAProxy in front of another Ray's replicas, in a pod."),
        "join": ("scripts.serve.join", "Joins this machine to the cluster of a server, and serves on it."),
        "deploy": ("scripts.serve.deploy", "Deploys a changed configuration to a running server."),
        "keys": ("scripts.keys", "Makes, lists, replaces and removes API keys."),
    },
}
