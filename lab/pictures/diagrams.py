"""The diagrams of the documentation."""

from __future__ import annotations

from lab.pictures.chart import Box, Diagram

_GRAPH = {
    "ingress": Box("Ingress", "queue, batches", 1, 0.5),
    "transformer": Box("JpegTransformer", "JPEG to pixels", 2, 0.5),
    "one": Box("resnet", "probabilities", 3, 0),
    "two": Box("densenet", "probabilities", 3, 1),
    "combiner": Box("Combiner", "mean", 4, 0.5),
    "labeler": Box("Labeler", "label", 5, 0.5),
}
_CLIENT = {"client": Box("client", "HTTP, gRPC", 0, 0.5)}
_ARROWS = [
    ("client", "ingress", ""),
    ("ingress", "transformer", ""),
    ("transformer", "one", ""),
    ("transformer", "two", ""),
    ("one", "combiner", ""),
    ("two", "combiner", ""),
    ("combiner", "labeler", ""),
]


def diagrams() -> dict[str, Diagram]:
    """Return every diagram by the name of its file in docs/images."""
    return {
        "separate": Diagram(
            "placement: separate",
            "A dashed frame is a process: each node has replicas of its own, fails alone and scales alone.",
            {**_CLIENT, **_GRAPH},
            _ARROWS,
            [[name] for name in _GRAPH],
        ),
        "inline": Diagram(
            "placement: inline",
            "One process has every node: no hop between them, and the whole graph is replicated.",
            {**_CLIENT, **_GRAPH},
            _ARROWS,
            [list(_GRAPH)],
        ),
        "cascade": Diagram(
            "A cascade",
            "The next member receives only those images of which the members before it are not sure together.",
            {
                "images": Box("images", "a batch", 0, 0),
                "one": Box("resnet", "all images", 1.3, 0),
                "two": Box("densenet", "the others", 2.9, 0),
                "first": Box("answer", "of one member", 1.3, 1.3),
                "both": Box("answer", "of both members", 2.9, 1.3),
            },
            [("images", "one", ""), ("one", "two", "unsure"), ("one", "first", "sure: exit"), ("two", "both", "")],
        ),
        "trial": Diagram(
            "Canary and shadow",
            "A canary answers a share of the images. A shadow receives copies and changes no answer.",
            {
                "images": Box("images", "of a member", 0, 1),
                "stable": Box("version 2", "stable", 1.4, 0),
                "canary": Box("version 3", "canary", 1.4, 1),
                "shadow": Box("another model", "shadow", 1.4, 2),
                "answer": Box("answer", "to the client", 2.8, 0.5),
                "figures": Box("figures", "/stats, metrics", 2.8, 2),
            },
            [
                ("images", "stable", "95 %"),
                ("images", "canary", "5 %"),
                ("images", "shadow", "copies"),
                ("stable", "answer", ""),
                ("canary", "answer", ""),
                ("shadow", "figures", ""),
            ],
        ),
        "ports": Diagram(
            "The ports for clients, for Prometheus, and between Ray's nodes",
            "HAProxy's ports for clients listen where the configuration says, by default on loopback.",
            {
                "clients": Box("clients", "", 0, 0.5),
                "http": Box("HAProxy :8000", "HTTP, the page", 1.2, 0),
                "grpc": Box("HAProxy :9000", "gRPC", 1.2, 1),
                "ingress": Box("Ingress", "Unix sockets", 2.4, 0.5),
                "prometheus": Box("Prometheus", "", 0, 2.4),
                "proxy": Box(":9101/metrics", "HAProxy, loopback", 1.2, 2),
                "nodes": Box(":9102/metrics", "Ray, loopback", 1.2, 2.8),
                "ray": Box("Ray's nodes", "with Ray's token", 0, 3.8),
                "replicas": Box("a random port", "every interface", 1.2, 3.8),
                "each": Box("each replica", "calls by handle", 2.4, 3.8),
            },
            [
                ("clients", "http", ""),
                ("clients", "grpc", ""),
                ("http", "ingress", ""),
                ("grpc", "ingress", ""),
                ("prometheus", "proxy", ""),
                ("prometheus", "nodes", ""),
                ("ray", "replicas", ""),
                ("replicas", "each", ""),
            ],
        ),
    }
