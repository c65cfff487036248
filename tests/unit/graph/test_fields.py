"""Each field of the configuration does something: a request, a start or a test shows it. A new field needs an entry."""

import asyncio
import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from pydantic import BaseModel
from ray.serve.schema import HTTPOptionsSchema, gRPCOptionsSchema

from deployments.contract.batch import Batch
from deployments.contract.caller import ADDRESS, ANYONE, Caller
from deployments.contract.errors import ConfigurationError, Overloaded
from deployments.contract.item import Item
from deployments.contract.member import MemberConfig, MemberInterface
from deployments.contract.options import Options
from deployments.contract.preprocessing import Preprocessing
from deployments.contract.sections import Section, owner
from deployments.entry_points import FEATURES, MEMBERS, PROTOCOLS, find_class, names
from deployments.ingress.keys import digest
from deployments.ingress.listeners.slot import APPLICATION, FUNCTIONS
from deployments.ingress.protocol import Protocol
from deployments.members.versioned import VersionSettings
from deployments.pipeline.member_client import Member, Members
from ensemble_features.cache.stores import open_store
from ensemble_features.cascade.feature import Cascading
from ensemble_features.cascade.flow import LoadState
from ensemble_features.cascade.ladder import FEWEST
from ensemble_features.loading.flow import LoadingSettings
from ensemble_features.shadow.flow import ShadowSettings
from ensemble_interop.remote.calls import connect_to
from ensemble_interop.remote.client import CallError
from ensemble_interop.remote.tensors import TensorSettings, bind, convert_pixels
from graph import rules
from graph.app import build
from graph.config import EnsembleConfig, parse
from graph.placement import pinning
from graph.signature import resolve_signatures
from packages.plugins.features.tests.cascade.test_load import waited
from scripts.configuration import check, doubts, why_serve
from scripts.keys import add as add_key
from scripts.serve.front import in_front
from scripts.serve.haproxy_config import configuration as haproxy
from tests import pictures
from tests.model_server import Abort, StandIn
from tests.networks import brightness, constant, one_hot, store
from tests.replica import served

INLINE = {name: {"placement": "inline"} for name in ("transformer", "combiner", "labeler")}
ONE = {"name": "one", "placement": "inline", "threads": 1, "streams": 1, "version": 1}
SIX = {**ONE, "name": "six"}
REMOTE = {"name": "far", "kind": "open_inference", "url": "http://127.0.0.1:9", "labels": ["a", "b"], "size": [8, 8]}
TYPED = {"kind": "tensorflow_serving", "datatype": "FP32"}
CANARY = {"version": 2, "share": 1.0}
SHADOW = {**SIX, "role": "shadow", "share": 1.0}
JPEG, OTHER, LARGE = pictures.jpeg(), pictures.jpeg(seed=1), pictures.encode(pictures.noise(400, 400), ".png")
ENORMOUS = pictures.encode(pictures.grey(128, 2500, 2500), ".png")
# Light in the middle, and dark at the sides.
MIDDLE = pictures.grey(0)
MIDDLE[16:48, 16:48] = 255


KEYS = ("first", "second")
SHADOWING = {"members": [ONE, SHADOW], "user_config": {"shadows": {"six": {"share": 1}}}}


def auditing(**more):
    """A cascade whose early exits are audited."""
    audit = {"share": 1, "at_most": 0.1, **more}
    return two(ensemble={"cascade": {"order": ["one", "six"], "exit_at": [0.5], "audit": audit}})


def one(**more):
    return {"members": [{**ONE, **more}]}


def two(first=None, **more):
    return {"members": [{**ONE, **(first or {})}, SIX], **more}


# What is seen of a server: of a request or two, the status and what the answer says.


def sends(*images, path="/classify", **headers):
    """Send images one after the other."""

    async def see(client):
        told = []
        for image in images or (JPEG,):
            response = await client.post(path, content=image, headers={"content-type": "image/jpeg", **headers})
            told.append((response.status_code, {**response.json(), "trace_id": ""}))
        return told

    return see


def asks(path, method="GET", **request):
    async def see(client):
        response = await client.request(method, path, **request)
        return response.status_code, response.text

    return see


async def form(client):
    """Two images in one request, and how many batches they came to."""
    response = await client.post("/classify", files=[("image", ("a", JPEG)), ("image", ("b", OTHER))])
    counted = {"inference_count": 0}
    # The figures of a batch come with its trace, after the answer.
    while response.is_success and counted["inference_count"] < 2:
        await asyncio.sleep(0)
        [counted] = (await client.get("/v2/models/ensemble/stats")).json()["model_stats"]
    return response.status_code, counted.get("execution_count")


def crowded(image=JPEG, by=ANYONE, headers=None, pixels=0, **taken):
    """Send an image while others have these places: the status, and when to come again."""

    async def see(client):
        admission = client.replica._ingress.admission
        with admission.admitted(**{"images": 1, "size": 0, **taken}, by=by), admission.isolated(pixels):
            admission.refusal("another client was refused", Caller("another"))
            response = await client.post("/classify", content=image, headers=headers)
        return response.status_code, response.headers.get("retry-after")

    return see


async def uploaded(client):
    """The seconds that a body of a megabyte has."""
    admission = client.replica._ingress.admission
    async with admission.arriving() as upload:
        admission.arrived(upload, 2**20)
        return round(upload.limit.when() - asyncio.get_running_loop().time())


async def beside_another(client):
    """What becomes of a request while the body of another one arrives."""
    try:
        async with client.replica._ingress.admission.arriving():
            return (await client.post("/classify", content=JPEG)).status_code
    except Overloaded:
        return "the other one has given way"


def leaves_in(*, ahead=0, after=0):
    """The seconds after which a lone image leaves the queue, with batches ahead of it, or after one of ten seconds."""

    async def see(client):
        batching = client.replica._ingress.queue._plain.batching
        for _ in range(ahead):
            batching.left(1)
        if after:
            batching.ended(after, batching.left(after) - 10)
        batching.arrived(1)
        leaves_at = batching.leaves_at(1)
        return leaves_at and round(leaves_at - time.monotonic())

    return see


async def labels(client):
    """Two answers, and what becomes of the true label of the first."""
    for name, image in (("first", JPEG), ("second", OTHER)):
        await client.post("/classify", content=image, headers={"content-type": "image/jpeg", "x-request-id": name})
    return (await client.post("/feedback", json={"request_id": "first", "label": "level1"})).status_code


async def shadowed(client):
    """Whether a shadow gets an image, and what it is compared with."""
    drawn = client.replica._settings._adjustable["shadows.six"].draw([Item(queued_ns=time.time_ns())])
    return drawn, (await client.get("/stats")).json()["rollout"]["shadows"]["six"]["replaces"]


def live(name, look):
    """What settings that change while the replica serves have become."""

    async def see(client):
        return look(client.replica._settings._adjustable[name])

    return see


def fails(trial):
    """Whether a canary is rolled back that fails on every second image, and then on all."""
    found = []
    for number in range(200):
        item = Item(queued_ns=number + 1, caller=Caller(headers={ADDRESS: str(number % 5)}))
        trial.note("canary", [item], [number > 100 or number % 2 == 0], 0.1)
        found.append(bool(trial.rolled_back))
    return found.index(True) if any(found) else None


def slow(trial):
    """After how many images a canary is rolled back that takes five times as long."""
    for number in range(200):
        item = Item(queued_ns=number + 1, caller=Caller(headers={ADDRESS: str(number % 5)}))
        trial.took([item], 0.5, 0.1)
        trial.note("canary", [item], [False], 0.1)
    return trial.rolled_back


def drawn_by_key(trial):
    """Which of some images of one user the canary answers."""
    return [trial.takes(bytes([number]), Caller(headers={"x-user": "a"})) for number in range(50)]


def copied(shadow):
    """Whether a shadow gets an image."""
    return shadow.draw([Item(queued_ns=time.time_ns())])


def audited(look):
    """What an audit makes of early exits of which all members answer half differently."""

    async def see(client):
        [audit] = [each._audit for each in client.replica._service.features if isinstance(each, Cascading)]
        for number in range(100):
            audit.note(0, 0.8, number % 2 == 0)
        return look(audit)

    return see


async def by_two_keys(client):
    """Whether the image of one key is cached for another."""
    sent = [await client.post("/classify", content=JPEG, headers={"authorization": f"Bearer {key}"}) for key in KEYS]
    return [(each.status_code, each.json()["cache"]["hit"]) for each in sent]


async def apart(client):
    """How many processes decode, after a small JPEG."""
    await client.post("/classify", content=JPEG)
    return len(client.replica._nodes["JpegTransformer"]._isolated.processes)


async def decoded_by_a_frozen_process(client):
    """What becomes of an image that a process does not decode in four seconds."""
    pool = client.replica._nodes["JpegTransformer"]._isolated
    await client.post("/classify", content=LARGE)
    for process in pool.processes:
        os.kill(process, signal.SIGSTOP)
    return (await client.post("/classify?timeout_ms=4000", content=LARGE)).json()["error"]["code"]


async def with_a_new_version(client):
    """Whether a version is served that came after the start."""
    member = client.replica._nodes["one"]
    first, folder = member.version, member._repository.find("late").folder
    store(folder.parents[1], "late", constant(one_hot(first)), first + 1)
    member.update(settled=True)
    return member.version - first


async def once_loaded(client):
    """An answer, after the versions that the settings name are loaded."""
    for thread in threading.enumerate():
        if thread.name == "load":
            await asyncio.to_thread(thread.join)
    return await sends()(client)


def node(name, look):
    """What a node of the replica has become."""

    async def see(client):
        return look(client.replica._nodes[name])

    return see


def compiled(name):
    """A property of the model that OpenVINO has compiled."""
    return node("one", lambda member: member._serving.loaded._requests[0].get_compiled_model().get_property(name))


def climbing(**more):
    """A cascade whose one rung answers requests that tolerate a point."""
    rung = {"exit_at": [0.5], "loss": 1.0, "differs": 0.3, "cost": 0.5, **more}
    return two(ensemble={"cascade": {"order": ["one", "six"], "exit_at": [1.0], "ladder": [rung]}})


async def withdrawn(client):
    """Whether a rung is withdrawn whose images all members answer half differently."""
    [cascading] = [each for each in client.replica._service.features if isinstance(each, Cascading)]
    rung = cascading._ladder.rungs[1]
    for number in range(2 * FEWEST):
        rung.count(is_exit=True)
        rung.note(number % 2 == 0)
    return rung.is_held


def two_keys(folder):
    (folder / "two").write_text("".join(f"{key} {digest(key).hex()}\n" for key in KEYS))
    return {"access": {"keys": str(folder / "two")}, "cache": {}}


def keyed(folder):
    add_key(folder / "keys", "mobile", None)
    return {"access": {"keys": str(folder / "keys")}}


SERVED = {
    "EnsembleConfig": {"model_repository": (lambda root: {"model_repository": str(root / "other")}, sends())},
    "TransformerConfig": {
        "crop_ratio": (
            {"transformer": {"placement": "inline", "crop_ratio": 0.5}},
            sends(pictures.encode(MIDDLE)),
            {"members": [{**ONE, "name": "brightness"}]},
        ),
        "threads": ({"transformer": {"threads": 3}}, node("JpegTransformer", lambda each: each._pool._max_workers)),
        "isolate": ({"transformer": {"isolate": "all"}}, apart),
    },
    "TransformerSettings": {
        "max_image_bytes": ({"transformer": {"max_image_bytes": 1024}}, sends()),
        "max_image_pixels": ({"transformer": {"max_image_pixels": 1024}}, sends()),
        "max_decoding_bytes": ({"transformer": {"max_decoding_bytes": 2**25}}, sends(ENORMOUS)),
        "decode_timeout_ms": (
            {"transformer": {"decode_timeout_ms": 1000}},
            decoded_by_a_frozen_process,
            {"transformer": {"threads": 1}},
        ),
    },
    "OpenVinoConfig": {
        "precision": (
            one(model="varied", version=1, precision="int8"),
            node("one", lambda member: member.version),
            one(model="varied", version=1),
        ),
        "streams": (one(threads=2, streams=2), compiled("NUM_STREAMS"), one(threads=2)),
        "inference_precision": (
            one(inference_precision="f32"),
            compiled("INFERENCE_PRECISION_HINT"),
            one(inference_precision="bf16"),
        ),
        "least_at_once": (
            one(threads=2, streams=2, least_at_once=4),
            node("one", lambda member: member._serving.loaded._part_sizes(4)),
            one(threads=2, streams=2),
        ),
    },
    "LocalMember": {
        "model": (one(model="six"), sends()),
        "version": (one(version=2), sends()),
        "threads": (one(threads=2), compiled("INFERENCE_NUM_THREADS")),
        "version_policy": (
            one(model="late", version=None, version_policy="latest"),
            with_a_new_version,
            one(model="late", version=None),
        ),
    },
    "VersionSettings": {"version": ({"user_config": {"nodes": {"one": {"version": 2}}}}, once_loaded)},
    "LoadingSettings": {
        "unloaded": (
            {"user_config": {"loading": {"unloaded": ["six"]}}},
            sends(),
            two(access={"operators": "anyone"}, ensemble={"quorum": 1}),
        ),
        "loaded": (
            {"user_config": {"loading": {"loaded": {"one": 2}}}},
            asks("/v2/models/one"),
            {"access": {"operators": "anyone"}},
        ),
    },
    "MemberConfig": {
        "name": (one(name="uno", model="one"), sends()),
        "weight": (two({"weight": 9}), sends(), two()),
    },
    "ShadowSection": {
        "role": (two() | {"members": [ONE, SHADOW]}, sends(), two()),
        "share": ({"members": [ONE, {**SHADOW, "share": 0}]}, shadowed, {"members": [ONE, SHADOW]}),
        "replaces": ({"members": [ONE, {**SHADOW, "replaces": "one"}]}, shadowed, {"members": [ONE, SHADOW]}),
    },
    "CanarySettings": {
        "share": (one(canary={**CANARY, "share": 0}), sends(), one(canary=CANARY)),
        **{
            name: (one(canary={**CANARY, name: value}), live("canaries.one", look), one(canary=CANARY))
            for name, value, look in (
                ("max_failures", 0.9, fails),
                ("least", 90, fails),
                ("max_slowdown", 9, slow),
            )
        },
    },
    "CanaryConfig": {
        "version": (one(canary={**CANARY, "version": 3}), sends(), one(canary=CANARY)),
        "key": (
            one(canary={**CANARY, "share": 0.5, "key": "header:x-user"}),
            live("canaries.one", drawn_by_key),
            one(canary={**CANARY, "share": 0.5}),
        ),
    },
    "ShadowSettings": {
        "share": ({"user_config": {"shadows": {"six": {"share": 0}}}}, live("shadows.six", copied), SHADOWING)
    },
    "OperatorsSection": {"operators": ({"access": {"operators": "anyone"}}, asks("/v2"))},
    "QuorumSettings": {
        "quorum": ({"ensemble": {"quorum": 1}}, sends(), {"members": [ONE, {**ONE, "name": "nothing"}]})
    },
    "CascadeSettings": {
        "order": (
            {"ensemble": {"cascade": {"order": ["six", "one"], "exit_at": [0.5]}}},
            sends(),
            two(ensemble={"cascade": {"order": ["one", "six"], "exit_at": [0.5]}}),
        ),
        "exit_at": (
            {"ensemble": {"cascade": {"order": ["one", "six"], "exit_at": [0.5]}}},
            sends(),
            two(ensemble={"cascade": {"order": ["one", "six"], "exit_at": [0.9]}}),
        ),
    },
    "RungSettings": {
        "exit_at": (climbing(exit_at=[1.0]), sends(path="/classify?tolerance=1"), climbing()),
        "loss": (climbing(loss=0.5), sends(path="/classify?tolerance=1"), climbing()),
        "differs": (climbing(differs=0.9), withdrawn, climbing()),
        "cost": (climbing(cost=0.7), sends(path="/classify?tolerance=1"), climbing()),
    },
    "AuditSettings": {
        "share": (auditing(share=1e-9), audited(lambda audit: len(audit.draw(range(100)))), auditing()),
        "at_most": (auditing(at_most=0.6, tighten=True), audited(lambda audit: audit.exit_at), auditing(tighten=True)),
        "tighten": (auditing(tighten=True), audited(lambda audit: audit.exit_at), auditing()),
    },
    "CacheSettings": {
        "per_key": ({"cache": {"per_key": True}}, by_two_keys, two_keys),
        "max_bytes": ({"cache": {"max_bytes": 65_536, "ttl_s": 1e-9}}, sends(JPEG, JPEG), {"cache": {}}),
        "ttl_s": ({"cache": {"ttl_s": 1e-9}}, sends(JPEG, JPEG), {"cache": {}}),
    },
    "FeedbackSettings": {
        "max_requests": ({"feedback": {"max_requests": 1}}, labels, {"feedback": {}}),
        "ttl_s": ({"feedback": {"ttl_s": 1e-9}}, labels, {"feedback": {}}),
    },
    "CombinerSettings": {
        "method": ({"combiner": {"method": "geometric_mean"}}, sends(), two()),
        "weights": ({"combiner": {"weights": {"six": 1}}}, sends(), two()),
    },
    "LabelerSettings": {"top_k": ({"labeler": {"top_k": 2}}, sends())},
    "SharedMemorySection": {
        "shared_memory_prefix": (
            {"ingress": {"shared_memory_prefix": "mine"}},
            asks("/v2/systemsharedmemory/region/a/register", "POST", json={"key": "mine", "offset": 0, "byte_size": 8}),
        ),
    },
    "IngressSettings": {
        "max_batch_size": ({"ingress": {"max_batch_size": 1}}, form),
        "max_batch_bytes": ({"ingress": {"max_batch_bytes": 1024}}, form),
        "max_in_flight": ({"ingress": {"max_in_flight": 1}}, form),
        "max_parts": ({"ingress": {"max_parts": 1}}, form),
        "max_request_bytes": ({"ingress": {"max_request_bytes": 1024}}, sends()),
        "max_elements": (
            {"ingress": {"max_elements": 1024}},
            asks("/v2/models/ensemble/infer", "POST", content=b'{"inputs": [' + b"[]," * 2000 + b"1]}"),
        ),
        "hosts": ({"ingress": {"hosts": ["a.example"]}}, asks("/v2", headers={"host": "a.example"})),
        "origins": (
            {"ingress": {"origins": ["*"]}},
            asks("/classify", "POST", headers={"origin": "https://a.example"}, content=JPEG),
        ),
        "max_in_flight_bytes": (
            {"ingress": {"max_in_flight_bytes": 2**16}},
            crowded(size=2**16),
            {"ingress": {"max_request_bytes": 2**16}},
        ),
        "max_in_flight_pixels": ({"ingress": {"max_in_flight_pixels": 200_000}}, crowded(LARGE, pixels=100_000)),
        "retry_after_s": ({"ingress": {"retry_after_s": 1000}}, crowded(images=256)),
        "overload_status": ({"ingress": {"overload_status": 429}}, crowded(images=256)),
        "fair_by": (
            {"ingress": {"fair_by": "address"}},
            crowded(images=200, by=Caller("10.0.0.1"), headers={"x-forwarded-for": "10.0.0.1"}),
        ),
        "timeout_ms": ({"ingress": {"timeout_ms": 1000}}, uploaded),
        "min_body_rate": ({"ingress": {"min_body_rate": 2**20}}, uploaded),
        "max_arriving": ({"ingress": {"max_arriving": 1}}, beside_another),
        "batch_wait_ms": ({"ingress": {"batch_wait_ms": 5000}}, leaves_in()),
        "refill_share": ({"ingress": {"refill_share": 1}}, leaves_in(after=4)),
        "max_concurrent_batches": ({"ingress": {"max_concurrent_batches": 1}}, leaves_in(ahead=1)),
    },
    "AccessConfig": {
        "keys": (keyed, sends()),
    },
    "PageSettings": {
        "enabled": ({"page": {"enabled": False}}, asks("/")),
        "jaeger_url": ({"page": {"jaeger_url": "http://jaeger.example"}}, asks("/")),
    },
}


# What is seen of a configuration without a server.


def signature(args):
    """What a remote member is agreed to take while its server is away."""
    agreed = resolve_signatures(parse(args))
    return str(agreed.preprocessing), agreed.labels, agreed.versions


def refusal(args):
    try:
        signature(args)
    except ConfigurationError as err:
        return str(err)
    return ""


def placed(args):
    """The deployments, with what each replica is made with, and the nodes that are inline."""
    plan, nodes, *_ = build(args)._bound_deployment.init_args
    names = {name: getattr(each, "_bound_deployment", None) for name, each in nodes.items()}
    return {name: each and (each.name, each.init_args[2:]) for name, each in names.items()}, plan.services


def placed_features(args):
    """The features of the application."""
    return [each.feature for each in build(args)._bound_deployment.init_args[0].build.args[2]]


def placed_protocols(args):
    """The protocols of the application besides the installed ones."""
    return build(args)._bound_deployment.init_args[0].protocols


def pinned(args):
    config = parse(args)
    return pinning(config, "Ingress"), pinning(config, config.members[0].name)


def doubted(args):
    """What is said at the start about the members."""
    config = parse(args)
    return [*doubts(config, resolve_signatures(config))]


def cascade(**more):
    return two(ensemble={"cascade": {"order": ["one", "six"], "exit_at": [0.5], **more}})


def takes(args):
    return why_serve({"applications": [{"import_path": "graph.app:build", "args": args}]})


def far(**more):
    return {"members": [{**REMOTE, **more}]}


def connects(args):
    """The client of a remote member, and what it calls."""
    [member] = parse(args).members
    client = connect_to(member, "127.0.0.1", 10)
    return type(client).__name__, str(client.__dict__.get("_url", "")), member.model_name, member.url


def signature_called(args):
    """The body that a client sends to a servable."""
    client, sent = connect_to(parse(args).members[0], "127.0.0.1", 10), []

    async def call(path, timeout_s, body, headers):
        sent.append(body)
        raise CallError

    client._call = call
    with suppress(CallError):
        asyncio.run(client.infer(bind(client._configured, TensorSettings()), np.zeros((1, 1, 1, 3), np.uint8), {}, 1))
    return sent


def undescribed(args):
    """The tensors of a server without metadata."""
    return connect_to(parse(args).members[0], "127.0.0.1", 10)._configured


def called(args):
    """What a server is sent for pixels."""
    [member] = parse(args).members
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(1, 8, 8, 3)
    return convert_pixels(pixels, bind(undescribed(args), member), member).tolist()


def kept_in(args):
    """The store of the cache."""
    return open_store(parse(args).features["cache"])


def stored(args):
    """The time that Redis may take, and its password."""
    options = kept_in(args)._client.connection_pool.connection_kwargs
    return options["socket_timeout"], options["password"]


def shed(args):
    """When the thresholds for load hold as images wait longer and shorter, and what they let through."""
    load, seen = LoadState(parse(args).ensemble.field("under_load")), []
    for ms in (10, 30, 60, 150, 60, 30, 10):
        load.see(waited(ms))
        seen.append(load.is_on)
    load.see(waited(*[1000] * 20))
    return seen, load.rung.exit_at, sum(load.grants(Item(options=Options(quality="full"))) for _ in range(20))


def under_load(**more):
    cascade = {"order": ["one", "six"], "exit_at": [0.5]}
    return two(ensemble={"cascade": cascade, "under_load": {"exit_at": [0.1], **more}})


def patience(args):
    """How long two members may take for an image without a deadline."""
    members = Members(dict.fromkeys(("one", "six"), Member(None, "")), parse(args).ensemble)
    return members.deadlines(Batch({}, (Item(),)))


def credentials(args):
    """What a remote member shows its server, and trusts."""
    [member] = parse(args).members
    # Nobody is there; a file that is no certificate is named before.
    with pytest.raises(CallError) as caught:
        asyncio.run(connect_to(member, "127.0.0.1", 10).describe(5.0))
    return member.authorization(), str(caught.value)


def secret(**files):
    """A remote member with files of secrets, each with its own content."""

    def made(root):
        for name in files.values():
            (root / name).write_text(name)
        return far(url="grpcs://127.0.0.1:9", **{field: str(root / name) for field, name in files.items()})

    return made


MADE = {
    "QuorumSettings": {
        "patience_ms": ({"ensemble": {"quorum": 1, "patience_ms": 60_000}}, patience, {"ensemble": {"quorum": 1}})
    },
    "UnderLoadSettings": {
        name: (under_load(**{name: value}), shed, under_load())
        for name, value in {"exit_at": [0.2], "from_queue_ms": 50, "until_queue_ms": 40, "full_share": 0.5}.items()
    },
    "EnsembleConfig": {
        "cpus": ({"cpus": [0]}, pinned),
        "edges": ({"edges": "handle"}, placed, one(placement="separate")),
        "front": ({"front": "serve"}, takes),
        "protocols": ({"protocols": ["deployments.ingress.grpc.health:Health"]}, placed_protocols),
        "features": ({"features": {"graph.feature:Feature": {}}}, placed_features),
    },
    "TransformerConfig": {
        "placement": ({"transformer": {"placement": "separate"}}, placed),
        "size": ({"transformer": {"size": [9, 9]}}, refusal),
    },
    "CascadeSettings": {"versions": (cascade(versions={"one": 7}), doubted, cascade(versions={"one": 3}))},
    "CombinerConfig": {"placement": ({"combiner": {"placement": "separate"}}, placed)},
    "LabelerConfig": {"placement": ({"labeler": {"placement": "separate"}}, placed)},
    "MemberConfig": {
        "placement": (one(placement="separate"), placed),
        "deployment": (one(placement="separate", deployment="Mine"), placed, one(placement="separate")),
    },
    "LocalMember": {"cpus": (one(placement="separate", cpus=[0]), pinned, one(placement="separate"))},
    "OpenVino": {"kind": (one(kind="openvino"), refusal, {"members": [{"name": "one", "kind": "onnxruntime"}]})},
    "OnnxRuntime": {"kind": ({"members": [{"name": "one", "kind": "onnxruntime"}]}, refusal)},
    "OpenInference": {"kind": (far(kind="tensorflow_serving"), connects, far())},
    "TensorFlowServing": {
        "kind": (far(kind="tensorflow_serving"), connects, far()),
        "datatype": (far(kind="tensorflow_serving", datatype="FP32"), undescribed, far(kind="tensorflow_serving")),
        "signature_name": (far(**TYPED, signature_name="other"), signature_called, far(**TYPED)),
    },
    "CacheSettings": {
        "redis": ({"cache": {"redis": "redis://a"}}, lambda args: type(kept_in(args)), {"cache": {}}),
        "redis_timeout_ms": ({"cache": {"redis_timeout_ms": 9}}, stored, {"cache": {"redis": "redis://a"}}),
        "redis_password_file": (
            {"cache": {"redis_password_file": __file__}},
            stored,
            {"cache": {"redis": "redis://a"}},
        ),
    },
    "TensorSettings": {
        **{name: (far(**TYPED, **{name: "other"}), undescribed, far(**TYPED)) for name in ("input", "output")},
        **{
            name: (far(**TYPED, **{name: value}), called, far(**TYPED))
            for name, value in {"layout": "NCHW", "color": "RGB", "mean": [1, 1, 1], "scale": [2, 2, 2]}.items()
        },
    },
    "RemoteConfig": {
        "token_file": (secret(token_file="token"), credentials, far()),
        "ca_file": (secret(ca_file="ca"), credentials, far()),
        "cert_file": (secret(cert_file="new", key_file="key"), credentials, secret(cert_file="old", key_file="key")),
        "key_file": (secret(cert_file="cert", key_file="new"), credentials, secret(cert_file="cert", key_file="old")),
        "url": (far(url="grpc://127.0.0.1:9"), connects, far()),
        "model": (far(model="other"), connects, far()),
        "labels": (far(labels=["a", "c"]), signature, far()),
        "as_sent": (far(as_sent=True, size=None), signature, far()),
        "size": (far(size=[9, 9]), signature, far()),
        "crop_ratio": (far(crop_ratio=0.5), signature, far()),
        "resize": (far(resize="stretch"), signature, far()),
        "interpolation": (far(interpolation="linear"), signature, far()),
        "border": (far(resize="letterbox", border=[1, 2, 3]), signature, far(resize="letterbox")),
    },
}

# What a server elsewhere sees of two batches of two images, and what fails: with the field, and without it.


TWO = Batch(np.zeros((2, 8, 8, 3), np.uint8), (Item(), Item()))


def flaky(rows):
    raise Abort("UNAVAILABLE")


def broken(rows):
    raise Abort("INTERNAL")


def logits(rows):
    return np.tile(np.array([3, 1, 0, 0], np.float32), (rows, 1))


ELSEWHERE = {
    "TensorSettings": {"scores": ({"scores": "logits"}, logits)},
    "RemoteConfig": {
        "version": ({"version": 9}, None),
        "timeout_ms": ({"timeout_ms": 1000}, None),
        "max_batch_size": ({"max_batch_size": 1}, None),
        "retries": ({"retries": 0}, flaky),
        "break_after": ({"break_after": 1}, broken),
    },
}


def schemas(annotation):
    """The schemas that a field's type names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from schemas(each)


def fields(schema):
    """Every field below a schema that is no section itself, by the class that declares it."""
    for name, field in schema.model_fields.items():
        below = [*schemas(field.annotation), *(found for each in field.metadata for found in schemas(each))]
        # An entry of `features` has the schema of its feature.
        below = [each for each in below if each is not Section]
        for each in below:
            yield from fields(each)
        if not below:
            declaring = next(each for each in schema.__mro__ if name in vars(each).get("__annotations__", {}))
            yield declaring.__name__, name


def listed_in(table):
    return [(schema, name) for schema, entries in table.items() for name in entries]


def test_every_field_has_an_entry_and_every_entry_a_field():
    kinds = [find_class(MEMBERS, name, MemberConfig) for name in names(MEMBERS)]
    owners = [*map(owner, names(FEATURES)), *(find_class(PROTOCOLS, name, Protocol) for name in names(PROTOCOLS))]
    sections = [section for each in owners for section in each.sections]
    roots = (EnsembleConfig, *kinds, *sections, ShadowSettings, VersionSettings, LoadingSettings)
    known = {field for root in roots for field in fields(root)} - {("MemberConfig", "kind")}
    entries = [*listed_in(SERVED), *listed_in(MADE), *listed_in(ELSEWHERE)]
    assert set(entries) == known
    assert len(entries) == len(known)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    for name, version, model in (
        ("one", 1, constant(one_hot(1))),
        ("one", 2, constant(one_hot(2))),
        ("one", 3, constant(one_hot(3))),
        ("six", 1, constant(one_hot(6, peak=0.7))),
        ("nothing", 1, constant([float("nan")] * 8)),
        ("brightness", 1, brightness()),
        ("late", 1, constant(one_hot(1))),
    ):
        store(folder, name, model, version)
    store(folder, "varied", constant(one_hot(1)))
    store(folder, "varied", constant(one_hot(1)), 2, precision="INT8", variant_of=1)
    store(folder / "other", "one", constant(one_hot(4)))
    return folder


def complete(root, *changes):
    """The arguments with changes, of which those of a section are added to it."""
    args = {"model_repository": str(root), **INLINE, **one()}
    for change in changes:
        for name, value in (change(root) if callable(change) else change).items():
            args[name] = {**args.get(name, {}), **value} if isinstance(value, dict) else value
    return args


@pytest.mark.parametrize(("schema", "name"), listed_in(SERVED))
async def test_a_request_shows_the_field(root, schema, name):
    change, see, *base = SERVED[schema][name]
    seen = []
    for changes in (base, [*base, change]):
        args = complete(root, *changes)
        user_config = args.pop("user_config", {})
        async with served(args) as client:
            client.replica.reconfigure(user_config)
            seen.append(await see(client))
    assert seen[0] != seen[1]


@pytest.mark.parametrize(("schema", "name"), listed_in(MADE))
def test_a_start_shows_the_field(root, schema, name):
    change, see, *base = MADE[schema][name]
    assert see(complete(root, *base)) != see(complete(root, *base, change))


@pytest.mark.parametrize(("schema", "name"), listed_in(ELSEWHERE))
async def test_a_server_elsewhere_shows_the_field(schema, name):
    change, behave = ELSEWHERE[schema][name]
    seen = []
    for changes in ({}, change):
        server = StandIn(behave)
        port = await server.start("grpc")
        [member] = parse(far(**changes, url=f"grpc://127.0.0.1:{port}")).members
        node = member.make(None, MemberInterface(Preprocessing((8, 8)), ("a", "b", "c", "d")), 8)
        failed = [[item.error and item.error.code for item in (await node(TWO)).items] for _ in range(2)]
        await server.stop()
        seen.append((failed, server.asked, [round(each) for each in server.seconds_left]))
    assert seen[0] != seen[1]


# The options of Serve's that this project reads; `rules` has a word on each of the others, or tls.py refuses it.


def front(config, monkeypatch):
    """What receives requests: HAProxy's configuration, and the environment of the replicas behind it."""
    config = {"applications": [{"import_path": "graph.app:build", "args": {"members": [ONE]}}], **config}
    made = []
    monkeypatch.setattr("scripts.serve.front.HAProxy", lambda _, listening: made.append(listening) or HAPROXY)
    with in_front(Path("none"), config, None):
        environment = {name: os.environ[name] for name in (APPLICATION, FUNCTIONS)}
    return haproxy(Path("/"), made[0]), environment


class HAPROXY:
    end = staticmethod(lambda: None)


OPTIONS = {
    "http_options": {"host": "127.0.0.2", "port": 1},
    "grpc_options": {"port": 1, "enable_reflection": False, "grpc_servicer_functions": []},
}


@pytest.mark.parametrize(("section", "name"), listed_in(OPTIONS))
def test_haproxy_shows_the_option(monkeypatch, section, name):
    assert front({section: {name: OPTIONS[section][name]}}, monkeypatch) != front({}, monkeypatch)


@pytest.mark.parametrize(
    ("section", "schema"), [("http_options", HTTPOptionsSchema), ("grpc_options", gRPCOptionsSchema)]
)
def test_every_option_of_serves_listeners_is_read_or_told(section, schema):
    told = {field.partition(".")[2] for field in rules.OF_THE_PROXY if field.startswith(section)}
    of_tls = {name for name in schema.model_fields if name.startswith("ssl_")}
    assert set(schema.model_fields) == {*OPTIONS[section], *told, *of_tls}


def sent(**more):
    """A remote member that gets images as they were sent."""
    return {"members": [{**{name: each for name, each in REMOTE.items() if name != "size"}, "as_sent": True, **more}]}


# Contradictions, and what is said of each.
REFUSED = {
    "configuration: members: 'one': weight: combiner.weights has": {
        "members": [{**ONE, "weight": 2.0}],
        "combiner": {"weights": {"one": 1}},
    },
    "members.0: border: only `resize: letterbox`": far(border=[1, 2, 3]),
    **{
        f"members.0: {name}: with `as_sent: true`": sent(**{name: value})
        for name, value in {
            **{"size": [8, 8], "crop_ratio": 0.5, "resize": "stretch", "interpolation": "linear"},
            **{"layout": "NHWC", "color": "RGB", "mean": [1, 1, 1], "scale": [2, 2, 2]},
        }.items()
    },
    "members.0: datatype: with `as_sent: true`": sent(kind="tensorflow_serving", datatype="FP32"),
    "cache.per_key: there are no keys": {"cache": {"per_key": True}},
}
INGRESS = {"name": "Ingress"}
FUNCTION = "deployments.protocol.services.add_{}".format
OF_THE_PROXY = [
    ("http_options", {"request_timeout_s": 5}),
    ("http_options", {"keep_alive_timeout_s": 5}),
    ("http_options", {"root_path": "/x"}),
    ("grpc_options", {"request_timeout_s": 5}),
]
SERVICES_CASES = [
    ({"grpc_options": {"grpc_servicer_functions": ["mine.add"]}}, {}, "forwards to no other service"),
    ({"grpc_options": {"grpc_servicer_functions": [FUNCTION("health")] * 2}}, {}, "it stands there twice"),
    (
        {"grpc_options": {"grpc_servicer_functions": [FUNCTION("feedback")]}},
        {},
        "all refused without `feedback`",
    ),
    (
        {"grpc_options": {"grpc_servicer_functions": [FUNCTION("seldon")]}},
        {"front": "serve"},
        "finds a method by its name, which",
    ),
]


def told(root, args, serve=None, application=None):
    """What doctor, serve and deploy refuse."""
    given = {"name": "a", "import_path": "graph.app:build", "args": complete(root, args), **(application or {})}
    whole = {**(serve or {}), "applications": [given]}
    try:
        check(given, whole)
    except ConfigurationError as err:
        return [*err.args]
    return []


@pytest.mark.parametrize("what", REFUSED)
def test_a_contradiction_is_refused(root, what):
    [found] = told(root, REFUSED[what])
    assert found.startswith(what)


@pytest.mark.parametrize(("section", "options"), OF_THE_PROXY)
def test_an_option_that_nothing_reads_is_refused(root, section, options):
    [found] = told(root, {}, {section: options})
    assert found.startswith(f"{section}.{next(iter(options))}: only Serve's proxy reads it")
    assert not told(root, {}, {section: dict.fromkeys(options)})
    # Serve's proxy reads it.
    assert not told(root, {"front": "serve"}, {section: options})


@pytest.mark.parametrize(("serve", "args", "what"), SERVICES_CASES)
def test_services_that_can_not_be_served_are_told(root, serve, args, what):
    [found] = told(root, args, serve)
    assert what in found


def test_services_of_a_package_that_is_not_installed_are_told(root, without_plugins):
    for front in ("direct", "serve"):
        [found] = told(root, {"front": front}, {"grpc_options": {"grpc_servicer_functions": [FUNCTION("seldon")]}})
        assert "add_seldon: no installed protocol has it" in found
        assert "not installed here: ensemble-features, ensemble-interop" in found


@pytest.mark.parametrize(
    ("args", "package"),
    [
        (far(kind="tensorflow_serving"), "ensemble-interop"),
        (far(kind="open_inference"), "ensemble-interop"),
        (far(kind="onnxruntime"), "ensemble-onnxruntime"),
        ({"model_repository": "https://models.example"}, "ensemble-sources"),
        ({"ingress": {"shared_memory_prefix": "mine"}}, "ensemble-interop"),
        (one(canary=CANARY), "ensemble-features"),
        ({"members": [ONE, SHADOW]}, "ensemble-features"),
        ({"feedback": {}}, "ensemble-features"),
        (two(ensemble={"cascade": {"order": ["one", "six"], "exit_at": [0.5]}}), "ensemble-features"),
        ({"cache": {}}, "ensemble-features"),
        ({"page": {}}, "ensemble-features"),
        ({"access": {"operators": "anyone"}}, "ensemble-features"),
    ],
)
def test_an_argument_of_a_package_that_is_not_installed_is_told(root, args, package, without_plugins):
    [found] = told(root, args)
    assert re.search(f"not installed here: [a-z, -]*{package}.* \\(pip install ", found)


def test_a_protocol_that_is_none_is_told(root):
    [found] = told(root, {"protocols": ["graph.config:EnsembleConfig"]})
    assert "protocols: " in found
    assert "is no subclass of deployments.ingress.protocol.Protocol" in found


@pytest.mark.parametrize(
    ("deployment", "change", "what"),
    [
        ("Ingress", {"max_batchsize": 1}, "unknown field 'max_batchsize'; did you mean 'max_batch_size'"),
        ("Ingress", {"nodes": {"Labeler": {"top": 1}}}, "nodes.Labeler: configuration: unknown field 'top'"),
        ("Ingress", {"nodes": {"Combine": {}}}, "nodes.Combine takes no user_config"),
        ("Ingress", {"canaries": {"one": {"share": 2}}}, "canaries.one: share: "),
        ("Ingress", {"shadows": {"six": {}}}, "unknown field 'shadows'"),
        ("six", {"version": 0}, "six: version: "),
        ("six", {"weight": 1}, "six: configuration: unknown field 'weight'"),
    ],
)
def test_a_user_config_that_a_replica_would_refuse_is_refused(root, deployment, change, what):
    members = {"members": [{**ONE, "canary": CANARY}, {**SIX, "placement": "separate"}]}
    found = told(root, members, None, {"deployments": [{"name": deployment, "user_config": change}]})
    assert what in "".join(found)
    good = {"max_batch_size": 8, "nodes": {"Labeler": {"top_k": 2}}, "canaries": {"one": {"share": 0.5}}}
    assert not told(root, members, None, {"deployments": [{**INGRESS, "user_config": good}]})


def test_a_user_config_for_what_clients_have_loaded_is_checked_like_the_rest(root):
    args = {"access": {"operators": "anyone"}}
    for change, is_right in (({"unloaded": ["one"], "loaded": {"one": 2}}, True), ({"unload": ["one"]}, False)):
        found = told(root, args, None, {"deployments": [{**INGRESS, "user_config": {"loading": change}}]})
        assert (not found) == is_right, found
