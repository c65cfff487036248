"""Every number of the sentences on the experiments' pages follows from stored rows, from settings or from documents.

A function per experiment writes the phrases anew from the rows. A page has each phrase, and no number outside of one.
"""

# ruff: noqa: E501 - phrases are as long as they are on the page

import re
import statistics

import pytest

from deployments.ingress.settings import IngressSettings
from lab import reported
from lab.experiments import (
    arrivals,
    autoscaling,
    batches,
    distillation,
    hops,
    overload,
    payloads,
    predictions,
    replicas,
    scaling,
)
from lab.experiments.__main__ import EXPERIMENTS
from lab.experiments.experiment import BEGIN, END, FOLDER
from lab.rows import FEWEST, enough
from scripts.shipped import CHECKOUT

STUDENT = (CHECKOUT / "configs" / "student.yaml").read_text()


def rows_of(name):
    one = EXPERIMENTS[name]
    return one.summary(one.stored().rows)


def told(name):
    """Map the subjects of a document's figures to their values."""
    return {each.subject: each.value for each in reported.of(name)}


def by(rows, *names):
    found = {}
    for row in rows:
        found[tuple(row[name] for name in names) if len(names) > 1 else row[names[0]]] = row
    return found


def least_and_most(values, form):
    return f"{min(values):{form}} to {max(values):{form}}"


def held_out_loss():
    """Read how much the bundled pair loses on images that chose nothing; its rows are in no file of this folder."""
    [points] = re.findall(r"5,000 CIFAR-10 images that chose nothing: [\d.]+ %, -([\d.]+) points", STUDENT)
    return ["5,000 images that chose nothing", f"[{points} points worse]"]


def of_payloads():
    one = {row["form"]: row for row in rows_of("payloads") if row["images"] == payloads.PIXELS and row["batch"] == 1}
    jpeg, raw = (one[form]["p50_ms"] for form in ("REST, JPEG", "REST, binary uint8"))
    grpc = one["gRPC, raw uint8"]["p50_ms"]
    smaller = one[payloads.RAW_FLOATS]["bytes"] / one[payloads.SELDON_JPEG]["bytes"]
    seconds = EXPERIMENTS["payloads"].stored().seconds
    slow = [one[f]["p50_ms"] for f in ("Seldon gRPC, Tensor", "Seldon REST, lists", "Seldon gRPC, ListValue")]
    assert all(1000 * seconds / ms < FEWEST for ms in slow)
    # The order of the sentence.
    assert slow == sorted(slow)
    return [
        f"{smaller:.0f} times as many bytes as their JPEG (about "
        f"{told('payloads')['network traffic of arrays, in traffic of JPEGs']:.0f} times in the document)",
        f"A JPEG takes {jpeg:.1f} ms (p50), and pixels as raw uint8 take {raw:.1f} ms.",
        f"Within {seconds:g} s each of these three was sent fewer than {FEWEST} times",
        f"the same pixels take {raw:.1f} ms over HTTP and {grpc:.1f} ms over gRPC.",
    ]


def of_batches():
    rows, figures = rows_of("batches"), told("batches")
    rate = {(row["way"], row["images"]): row["images_per_s"] for row in rows}
    level = {way: batches.level(rows, way) for way in ("HTTP", "gRPC", batches.SHARED)}
    assert level[batches.SHARED] == max(batches.SIZES)
    served = ("HTTP", "gRPC", batches.SHARED)
    spread = max(
        max(each) / min(each) - 1
        for size in batches.SIZES
        if size >= 16
        for each in [[rate[way, size] for way in served]]
    )
    fewer = max(1 - rate[way, size] / rate[batches.ALONE, size] for way in served for size in batches.SIZES if size > 7)
    same = figures["images per request at the bottleneck over HTTP"] == level["HTTP"]
    assert same
    return [
        f"The bottleneck of HTTP is reproduced: {level['HTTP']} images per request reach 95 % of the highest rate, as many as",
        f"Over gRPC {level['gRPC']} images reach it, too, instead of {figures['images per request at the bottleneck over gRPC']}.",
        f"its rate still grows up to {max(batches.SIZES)} images.",
        f"From 16 images on, the protocols differ by at most {100 * spread:.0f} %.",
        f"From 8 images on, the server answers at most {100 * fewer:.0f} % fewer images",
        f"send requests of 1 to {max(batches.SIZES)} images",
    ]


def of_batching():
    at = {(row["sent"], row["size"], row["wait_ms"]): row for row in rows_of("batching")}
    full, few = arrivals.FULL, arrivals.FEW
    rate = {key[1:]: row["requests_per_s"] for key, row in at.items() if key[0] == full}
    wait = [at[few, 32, wait]["p50_ms"] for wait in (0, 20)]
    return [
        f"Batches of up to 8 images raise the throughput of {arrivals.CLIENTS} clients from {rate[1, 0]:.1f} to {rate[8, 5]:.1f} answers",
        f"At 15 requests per second a wait of 20 ms lengthens the median from {wait[0]:.0f} to {wait[1]:.0f} ms.",
        f"with 32 clients a wait of 20 ms changes it from {rate[32, 0]:.1f} to {rate[32, 20]:.1f} answers per second",
        f"batches of up to {IngressSettings().max_batch_size} images and no wait",
        f"the requests of {arrivals.CLIENTS} clients in a closed loop",
    ]


def of_arrivals():
    rows = enough(rows_of("arrivals"))
    over = {(row["system"], row["protocol"]): row for row in rows if row["share"] == max(arrivals.SHARES)}
    most = {}
    for row in rows:
        key = row["system"], row["protocol"]
        most[key] = max(most.get(key, 0), row["requests_per_s"])
    fewer = {name: 100 * (1 - most[name, "grpc"] / most[name, "http"]) for name, _ in most}
    failed = {key: f"{row['failed_share']:.1f}" for key, row in over.items()}
    p99 = {name: [over[name, way]["p99_ms"] / 1000 for way in ("http", "grpc")] for name, _ in over}
    assert {failed["triton", way] for way in ("http", "grpc")} == {"0.0"}
    return [
        f"Over gRPC Triton answered {fewer['triton']:.0f} % fewer requests than over HTTP, this application "
        f"{fewer['ours']:.0f} %, TorchServe {fewer['torchserve']:.0f} % and MLServer {fewer['mlserver']:.0f} %.",
        f"At 1.2 times the capacity this application refused {failed['ours', 'http']} % of the sent requests over HTTP and "
        f"{failed['ours', 'grpc']} % over gRPC, with a p99 of at most {max(p99['ours']):.2f} s.",
        f"TorchServe refused {failed['torchserve', 'http']} and {failed['torchserve', 'grpc']} %, with a p99 of at most "
        f"{max(p99['torchserve']):.2f} s.",
        f"Triton and MLServer refused at most {failed['mlserver', 'grpc']} %, with a p99 of "
        f"{least_and_most(p99['triton'] + p99['mlserver'], '.1f')} s.",
        f"the rate of {arrivals.CLIENTS} clients",
        f"takes more than {arrivals.TIMEOUT_S:.0f} s",
    ]


def of_ladder():
    rows, figures = rows_of("ladder"), told("ladder")
    rate = {row["step"]: row["requests_per_s"] for row in rows}
    times = {row["step"]: row.get("times") for row in rows}
    top = {row["step"]: row["top1"] for row in rows}
    plain, tuned, *_ = rate
    front, cascade, student = list(rate)[-3:]
    floats = "direct edges"
    ends = [figures[f"{what}, last"] / figures[f"{what}, first"] for what in ("food", "image scoring", "receipts")]
    kept = [row for row in rows if row["top1"] >= top[plain]][-1]["step"]
    assert kept == front
    return [
        f"answers {rate[floats]:.1f} requests per second, and Serve as its documentation tunes it {rate[tuned]:.1f}: "
        f"{rate[floats] / rate[tuned]:.1f} times as many",
        f"answers {rate[front]:.1f}, or {rate[front] / rate[tuned]:.1f} times as many; int8 alone gives {times['int8']:.1f}.",
        f"Serve as it comes answers {rate[plain]:.1f}",
        f"The document reports {ends[0]:.0f}, {ends[1]:.0f} and {ends[2]:.0f} times",
        f"last step that loses no accuracy it is {rate[front] / rate[plain]:.0f} times here",
        f"{top[plain] - top[cascade]:.2f} and {top[plain] - top[student]:.2f} points against float32",
        *held_out_loss(),
        "32 clients send the images",
        "on all 5,000 images",
    ]


def of_scaling():
    rows, figures = rows_of("scaling"), told("scaling")
    few = [row["requests"] for row in rows if row["cores"] == 1]
    assert max(few) < FEWEST
    at = {(row["machines"], row["replicas"], row["clients"]): row for row in rows if row["cores"] == 2}
    compared = [at[1, replicas, 16] for replicas in (2, 1)]
    assert enough(compared) == compared
    two, one = (row["requests_per_s"] for row in compared)
    level = scaling.compare(rows)["clients per pod at which throughput levels off"]
    wired = max((row for row in enough(rows) if "wire_there" in row), key=lambda row: row["requests_per_s"])
    images = figures["traffic of about 900 images per second"] * 1000 / 900
    return [
        f"the one-core rows have {min(few)} to {max(few)} requests, where [a sentence needs {FEWEST}]",
        f"With two cores and 16 clients, a replica per core answers {two:.0f} requests per second, and one replica on both "
        f"cores {one:.0f}.",
        f"{level.split()[0]} clients per replica reach 95 % of the highest rate, and "
        f"{figures['clients per pod at which throughput levels off']} clients in the document",
        f"An image takes {1000 * wired['wire_there'] / wired['requests_per_s']:.0f} kilobits on the wire, and {images:.0f} in",
        f"{min(scaling.CLIENTS)} to {max(scaling.CLIENTS)} clients send images over HTTP to one replica",
        'to 1 and 2 replicas on two cores. With 2 "machines"',
    ]


def of_hops():
    rows, figures = rows_of("hops"), told("hops")
    assert enough(rows) == rows
    at = by(rows, "way", "rate")
    middle = {way: row for (way, rate), row in at.items() if rate == hops.MIDDLE}
    each = {way: least_and_most(hops.hops(middle[way]).values(), ".1f") for way in hops.EDGES}
    in_all = {
        way: sum(hops.hops(middle[way]).values()) + middle[way]["client"] for way in ("handle", "direct", "inline")
    }
    tensorflow, open_inference = (
        [at[way, rate]["latency_ms"] - at["inline", rate]["latency_ms"] for rate in hops.RATES] for way in hops.REMOTE
    )

    def pair(of):
        return f"{figures[f'smallest {of}']:.0f} to {figures[f'largest {of}']:.0f} ms"

    return [
        f"At {hops.MIDDLE} requests per second, a hop by Serve's handle takes {each['handle']} ms and a direct edge "
        f"{each['direct']} ms ({pair('hop between two nodes')} in the document)",
        f"take {in_all['handle']:.1f} ms by handles, {in_all['direct']:.1f} ms by direct edges and {in_all['inline']:.1f} ms "
        f"inline ({figures['network and serialization in all']:.0f} ms in the document)",
        f"A proxy's {pair('latency added by a proxy to a model server')} are not reproduced.",
        f"A member behind TensorFlow Serving's protocol lengthens a whole request by {tensorflow[0]:.1f} ms at "
        f"{hops.RATES[0]} requests per second, and by {tensorflow[1]:.1f} ms at {hops.RATES[1]}.",
        f"lengthens it by {open_inference[0]:.1f} ms and shortens it by {-open_inference[1]:.1f} ms.",
        # The rows of the former run are in the history of this repository.
        f"an inline request took 68.1 ms at {hops.MIDDLE} requests per second, and "
        f"{middle['inline']['latency_ms']:.1f} ms in this one.",
        f"differ by more than {100 * hops.TOLERANCE:.0f} % from the latency",
    ]


def of_members():
    rounds = {}
    for row in EXPERIMENTS["members"].stored().rows:
        rounds.setdefault((row["placement"], row["served"], row["clients"]), []).append(row)
    compared = [row for row in enough(rows_of("members")) if "slowest" in row]
    assert {row["slowest"] for row in compared} == {"densenet"}

    def beyond_rounds(row, name):
        measured = [rounds[row["placement"], served, row["clients"]] for served in (row["slowest"], row["served"])]
        values = [[each[f"{name}_ms"] for each in turns] for turns in measured]
        return row[f"more_{name}"] > max(max(each) - min(each) for each in values)

    slower = [row for row in compared if any(beyond_rounds(row, name) for name in ("p50", "p99"))]
    assert (len(slower), len(compared)) == (1, 4)
    [row] = slower
    assert (row["where"], row["clients"]) == ("one process", 1)
    more = f"{row['more_p50']:.1f} ms longer than the DenseNet's, and its p99 {row['more_p99']:.1f} ms longer"
    return [f"the ensemble's p50 is {more}"]


def of_precision():
    rows, figures = rows_of("precision"), told("precision")
    at = by(rows, "model", "way")

    def gain(suffix=""):
        here = [at["ResNet-50", f"OpenVINO, {each}{suffix}"]["images_per_s"] for each in ("int8", "float32")]
        return here[0] / here[1]

    def reported_gain(vnni):
        return figures[f"int8 {vnni} VNNI, 28 clients"] / figures[f"float32 {vnni} VNNI, 28 clients"]

    ours = [at["ResNet-50", f"OpenVINO, {each}"]["images_per_s"] for each in ("int8", "float32")]
    networks = ("ResNet-50", "Inception v3")
    onnx = [at[n, "ONNX Runtime, float32"]["ms"] / at[n, "OpenVINO, float32"]["ms"] for n in networks]
    few = [at[network, "PyTorch, float32"]["requests"] for network in networks]
    # Both protocols gave the same.
    assert [row for row in rows if len(set(row.get("top1", {}).values())) > 1] == []
    assert max(few) < FEWEST
    over = [figures[f"{n}, float32, TensorFlow"] / figures[f"{n}, float32, OpenVINO"] for n in ("ResNet", "Inception")]
    top = {
        (model, each): at[model, f"OpenVINO, {each}"]["top1"]["HTTP"]
        for model, way in at
        for each in ("float32", "int8")
        if "bundled" in model
    }
    loss = [top[f"bundled {n}", "float32"] - top[f"bundled {n}", "int8"] for n in ("ResNet", "DenseNet")]
    lost = [figures[f"top-1 of the {n}, float32"] - figures[f"top-1 of the {n}, int8"] for n in ("ResNet", "DenseNet")]
    best = max(top[f"bundled {n}", "int8"] for n in ("ResNet", "DenseNet"))
    theirs = figures["top-1 of both, int8"] - max(figures[f"top-1 of the {n}, int8"] for n in ("ResNet", "DenseNet"))
    width = 100 * 1.96 * (best / 100 * (1 - best / 100) / 5000) ** 0.5
    return [
        f"With 28 clients and VNNI, ResNet-50 computes {ours[0]:.1f} images/s in int8 and {ours[1]:.1f} in OpenVINO's float32: "
        f"{gain():.1f} times as many ({reported_gain('with'):.1f} times on the document's 8280).",
        f"Without VNNI it is {gain(', without VNNI'):.1f} times as many ({reported_gain('without'):.1f} times on the document's "
        "8180).",
        f"OpenVINO's float32 is {least_and_most(onnx, '.2f')} times as fast as ONNX Runtime's.",
        f"TensorFlow 1.13 ({over[0]:.1f} and {over[1]:.1f} times slower in the document) was not measured, and eager PyTorch "
        f"computed {few[0]} and {few[1]} images",
        f"int8 costs the ResNet {loss[0]:.2f} and the DenseNet {loss[1]:.2f} points of top-1 ({lost[0]:.2f} and {lost[1]:.2f} in",
        f"each accuracy has a 95 % interval of {width:.1f} points to either side",
        f"Both members are {top['both bundled models', 'int8'] - best:.2f} points better than the better int8 member "
        f"({theirs:.2f} in the document)",
        *held_out_loss(),
        "of 28 clients, each core serves one at a time",
    ]


def of_threads():
    rows, figures = rows_of("threads"), told("threads")
    at = {(r["computed"], r["workers"], r["threads"], r["pinned"]): r["requests_per_s"] for r in rows if not r["quota"]}
    base, more, matched, pinned = (
        at["PyTorch", *key] for key in ((1, 2, False), (2, 2, False), (2, 1, False), (2, 1, True))
    )
    openvino = at["OpenVINO", 2, 1, True]
    first = figures["the base: one worker with the default threads"]
    second = figures["threads matched to cores, by four workers"]
    third = figures["threads matched, pinned to physical cores, by IPEX"]
    food = figures["a purely neural model, after all steps"] / figures["a purely neural model, before all steps"]
    defaults = [row for row in rows if row["default"]]
    assert [row["share"] for row in defaults] == [100.0, 100.0]
    quota = next(row["quota"] for row in rows if row["quota"])
    return [
        "with four workers on 8 cores",
        f"Here two workers compute {more:.1f} images/s, and one worker {base:.1f}.",
        f"Threads matched to cores: {matched:.1f} images/s, {matched / base:.1f} times the first worker's "
        f"({second / first:.1f} times in the document).",
        f"Pinned: {100 * (pinned / matched - 1):.0f} % more ({100 * (third / second - 1):.0f} % more in the document, on 8 of 24 "
        "physical cores, by IPEX)",
        f"All steps: {pinned / base:.1f} times the first worker's images by PyTorch, and {openvino / base:.1f} times by OpenVINO "
        f"({third / first:.1f} and {food:.1f} times in the document, by IPEX)",
        f"a control group of {quota} CPUs",
    ]


def of_overload():
    at = by(rows_of("overload"), "setup", "times")
    capacity = {row["capacity"] for row in at.values()}
    share = {key: f"{100 * row['refused'] / row['sent']:.0f}" for key, row in at.items()}
    shed = "the cascade, and thresholds for load"
    assert {share["the cascade", 1.5], share[shed, 1.5], share[shed, 3]} == {"0"}
    return [
        f"At 1.5 times the capacity all members refuse {share[overload.FULL, 1.5]} % of the photographs, and the cascade",
        f"At 3 times the capacity the cascade refuses {share['the cascade', 3]} %.",
        f"{at[shed, 3]['alike']:.1f} % of its answers",
        f"answer {capacity.pop():.0f} photographs per second, the best of three loads.",
        "then sends 1.5 and 3 times this capacity",
    ]


def of_autoscaling():
    rows = by(rows_of("autoscaling"), "trace", "policy")
    traces = ("a day", "bursts")

    def pair(policy, figure, form):
        return " and ".join(f"{rows[trace, policy][figure]:{form}}" for trace in traces)

    simulated = by(rows.values(), "trace")
    assert {row["fewest"] for row in simulated.values()} == {3}
    saved = [1 - rows[trace, autoscaling.LATENCY_TARGET]["of_fewest"] / 100 for trace in traces]
    assert statistics.mean(saved) == pytest.approx(1 / 5, abs=0.02)
    late = max(row["simulated_late"] for row in simulated.values())
    low, mid, peak = autoscaling.BASE, autoscaling.BASE * 1.5, autoscaling.PEAK
    return [
        f"holds a p99 of {autoscaling.P99_MS:.0f} ms over a day and in bursts: "
        f"{pair(autoscaling.LATENCY_TARGET, 'share', '.1f')} % of the requests are late",
        f"It uses {pair(autoscaling.LATENCY_TARGET, 'of_fewest', '.0f')} % of the replica-seconds of three",
        f"at most {late:.2f} % of the requests late; fixed counts of 3 and 2 were not served yet",
        f"at short delays uses {pair(QUICK, 'of_fewest', '.0f')} %, but {pair(QUICK, 'share', '.0f')} % of its requests are late. "
        f"By default {pair(DEFAULT, 'share', '.0f')} % are",
        "removes replicas after 600 s",
        f"sleeps for {1000 * autoscaling.SLEEP_S:.0f} ms per image",
        f"a day (from {low:.0f} to {peak:.0f} and back) and bursts (from {mid:.0f} to {peak:.0f}, four times)",
        f"ends more than {autoscaling.P99_MS:.0f} ms after its due time",
        f"keep {100 * (1 - autoscaling.LATE):.0f} % of the requests in time",
    ]


QUICK, DEFAULT = "Serve's, quick", "Serve's default"


def of_distillation():
    at = {(row["size"], row["way"]): row for row in rows_of("distillation")}
    figures, teachers = told("distillation"), at[32, distillation.TEACHERS]
    more = 100 * (at[20, "labels"]["wrong"] / at[32, "labels"]["wrong"] - 1)
    theirs = 100 * (figures["error with small images"] / figures["error with large images"] - 1)
    recipe = 1 - figures["error of the student after all measures"] / figures["error of the previous model"]
    gain = {way: [at[size, way]["gain"] for size in (32, 20)] for way in ("Hinton", "DIST", "labels, mixed images")}
    cpu = [100 * row["cpu_ms"] / teachers["cpu_ms"] for key, row in at.items() if key[1] != distillation.TEACHERS]
    mixed = gain["labels, mixed images"]
    return [
        f"With 20x20 instead of 32x32 pixels students make {more:.0f} % more errors ({theirs:.0f} % in the document).",
        f"Hinton's distillation adds {gain['Hinton'][0]:.2f} and {gain['Hinton'][1]:.2f} points to students with labels alone, "
        f"and DIST {gain['DIST'][0]:.2f} and {gain['DIST'][1]:.2f} points.",
        f"change the accuracy by {mixed[0]:.2f} and {mixed[1]:.2f} points",
        f"The document's {100 * recipe:.0f} % less error",
        f"A student takes {least_and_most(cpu, '.0f')} % of its teachers' CPU time",
    ]


def of_cost():
    rows = rows_of("cost")
    theirs = [row for row in rows if "reported" in row["where"]]
    per_call = {row["name"]: row["per_million"] for row in rows if "70%" in row["where"]}
    little = {row["name"]: row["per_million"] for row in rows if " 7%" in row["where"]}
    less = 1 - per_call["both, int8, a process per node"] / per_call["both, float32, a process per node"]
    [times] = {round(little[name] / per_call[name]) for name in per_call}
    assert times == 10
    figures = told("cost")
    [cpus] = {row["dollars_per_hour"] / figures["the CPU machine"] for row in rows if "here" in row["where"]}
    assert cpus == pytest.approx(1 / 4)
    return [
        f"At {figures['traffic of each machine']:.0f} pictures a minute the three reported machines idle for at least "
        f"{min(row['idle'] for row in theirs):.0f} % of the time",
        f"the price of {2 * figures['GPUs saved in each of two countries']:.0f} GPU machines for a year",
        f"int8 costs {100 * less:.0f} % less per call",
        "A machine with a load of 7 % costs ten times as much per call as a machine with 70 %",
        "loaded to at most 70 % of its rate",
    ]


def of_predictions():
    rows = rows_of("predictions")
    hold = sum(all(predictions.holds(row, name) for name in predictions.FIGURES) for row in rows)
    counted = predictions.tabled(rows)
    wide, intervals = (sum(row[name] for row in counted) for name in ("wide", "intervals"))
    return [
        f"Every figure of {hold} of {len(rows)} predictions lies in its interval. {wide} of {intervals} intervals",
        # Of the same run, whose rows of open loops are in the history of this repository; and a simulation.
        "until 2026-11-29. In the same run 40 of 43 of their intervals were wider",
        "A simulation of two equal loads of 40 s shows",
        "by 2.0 times at a load of 0.3, and by 4.3 times at 0.8.",
    ]


def of_replicas():
    assert (replicas.COUNTS, replicas.COUNTED_ON) == ((2, 3, 4), 2)
    return [
        f"with a peak of {100 * replicas.SHARE:.0f} % of the rate",
        f"ends more than {replicas.LATE_MS:.0f} ms after its due time",
    ]


def no_number():
    return []


# An experiment that has no result yet has sentences on its settings alone.
CLAIMS = {name: globals().get(f"of_{name}", no_number) for name in EXPERIMENTS}
NOT_RUN = "No machine has run this experiment yet."
# What has digits and is no figure: names, sizes in names, code, addresses, dates and commits.
NAMES = re.compile(
    r"`[^`]*`|\]\([^)]*\)|```.*?```|\b(?:u?int8|float32|p50|p99|top-1|ResNet-50|Inception v3|et al\. 20\d\d|20\d\d-\d\d-\d\d)\b"
    r"|\b\d{2,3}x\d{2,3}\b",
    re.DOTALL | re.IGNORECASE,
)
TABLE = re.compile(r"^\|.*$", re.MULTILINE)


def written_by_hand(name):
    """Join the lines of an experiment's section that the command does not write; tables of earlier runs have commits."""
    page = EXPERIMENTS[name].page.read_text()
    before, _, rest = page.partition(BEGIN.format(name))
    _, _, after = rest.partition(END.format(name))
    whole = before[before.rindex("\n## ") :] + after.partition("\n## ")[0]
    if page.index("\n## ") == before.rindex("\n## "):
        whole = page[: page.index("\n## ")] + whole
    return " ".join(TABLE.sub("", re.sub(r"```.*?```", "", whole, flags=re.DOTALL)).split())


@pytest.mark.parametrize("name", CLAIMS)
def test_the_sentences_have_what_the_rows_give(name):
    text = written_by_hand(name)
    missing = [phrase for phrase in CLAIMS[name]() if " ".join(phrase.split()) not in text]
    assert missing == [], "write these phrases on the page, or correct the sentence"


@pytest.mark.parametrize("name", CLAIMS)
def test_every_number_of_a_sentence_is_in_a_phrase_that_rows_give(name):
    text = written_by_hand(name)
    for phrase in CLAIMS[name]():
        text = text.replace(" ".join(phrase.split()), "")
    left = NAMES.sub("", text)
    assert [left[max(0, found.start() - 60) : found.end() + 30] for found in re.finditer(r"\d[\d.,]*", left)] == []


def test_the_index_tells_what_quantization_costs():
    index = " ".join((FOLDER / "index.md").read_text().split())
    top = {key: row["top1"]["HTTP"] for key, row in by(rows_of("precision"), "model", "way").items() if row.get("top1")}
    loss = [top[model, "OpenVINO, float32"] - top[model, "OpenVINO, int8"] for model, _ in top if "bundled" in model]
    benchmark = (FOLDER.parent / "benchmarks" / "ensembles.md").read_text()
    [(points, low, high)] = re.findall(r"\| all three, mean \|.*\| -([\d.]+) \(-([\d.]+) to ([\d.]+)\)", benchmark)
    assert f"costs at most {max(loss):.2f} points on the bundled members" in index
    assert f"and {points} (-{high} to {low}) on [three for photographs]" in index


@pytest.mark.parametrize("name", CLAIMS)
def test_a_page_and_the_index_tell_whether_and_when_it_was_measured(name):
    result = EXPERIMENTS[name].stored()
    assert (NOT_RUN in written_by_hand(name)) == (result is None)
    [line] = re.findall(rf"^\| \[{name}\]\(.*$", (FOLDER / "index.md").read_text(), re.MULTILINE)
    assert line.split(" | ")[-1] == f"{'not yet' if result is None else result.date} |"
