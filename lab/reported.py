"""The figures of the five documents that this project answers, and the experiment that measures each here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
        name: on the pages.
        file: of its text, in the folder that ENSEMBLE_DOCUMENTS names.
        title: of the document.
        authors: by name; a company where no person is named.
        date: as the text has it; empty for a text without a date.
    """

    name: str
    file: str
    title: str
    authors: tuple[str, ...]
    date: str = ""


INTEL = Document(
    "Intel", "intel-seldon-2019.txt", "Performance Boosting in Seldon", ("Dariusz Trawinski", "Clive Cox"), "06/11/2019"
)
DECI = Document(
    "Deci",
    "deci-five-factors.txt",
    "5 Factors that Impact the Inference Pipeline in Production + Hardware Usage Metrics",
    ("Deci",),
)
HELSINKI = Document("Helsinki", "helsinki-inference-scaling.txt", "Inference scaling", ("Dennis Muiruri",))
MXNET = Document(
    "MXNet",
    "mxnet-faster-cheaper-leaner.txt",
    "Faster, Cheaper, Leaner: improving real-time ML inference using Apache MXNet",
    ("Olivier Cruchant",),
    "Jan 7, 2020",
)
NAVER = Document(
    "NAVER",
    "naver-cpu-transition.txt",
    "ML Model Server Resource Saving - Transition From High-Cost GPUs to Intel CPUs and oneAPI powered Software with "
    "performance",
    ("Sangjune Park", "Jooyoung Lee", "Junho Min"),
)
DOCUMENTS = (INTEL, DECI, HELSINKI, MXNET, NAVER)

SKYLAKE, CASCADE_LAKE = "Intel Xeon Platinum 8180", "Intel Xeon Platinum 8280"
GKE, NAVERS = "32 virtual cores of Intel Xeon Scalable processors", "Intel Xeon Silver 4214"
CPU_MACHINE, SMALL_MACHINE, GPU_MACHINE = "ml.c5.2xlarge", "ml.t2.medium + ml.eia1.medium", "ml.p3.2xlarge"


@dataclass(frozen=True)
class Reported:
    """A figure.

    Attributes:
        document: that reports it.
        place: its table, figure or section there.
        subject: what was measured; unique within an experiment.
        value: the figure; None for a finding in words, which `unit` has.
        unit: of the value.
        near: a term of the text that stands within a few words of the figure; the model if it is empty.
        written: the figure as the text writes it, if not in digits as here.
        model: that was measured; empty if the text names none.
        hardware: that it was measured on; empty if the text names none.
        clients: that sent requests at a time; None if the text does not say.
        experiment: the page of docs/experiments that measures or computes it here; None if none does.
        why_not: why not; None if one does.
    """

    document: Document
    place: str
    subject: str
    value: float | None
    unit: str
    near: str = ""
    written: str = ""
    model: str = ""
    hardware: str = ""
    clients: int | None = None
    experiment: str | None = None
    why_not: str | None = None

    @property
    def text(self) -> str:
        """The figure for people."""
        return self.unit if self.value is None else f"{self.value:,.15g} {self.unit}"


def of(experiment: str) -> list[Reported]:
    """List the figures that an experiment measures."""
    return [each for each in REPORTED if each.experiment == experiment]


_wire = partial(Reported, INTEL, "Network Communication", experiment="payloads")
_table_1 = partial(Reported, INTEL, "Table 1", unit="ms", hardware=SKYLAKE, experiment="precision")
_table_2 = partial(Reported, INTEL, "Table 2", unit="ms", hardware=CASCADE_LAKE, experiment="precision")
_table_3 = partial(Reported, INTEL, "Table 3", model="ResNet v1.50", experiment="precision")
_table_4 = partial(Reported, INTEL, "Table 4", experiment="precision")
_fig_5 = partial(Reported, INTEL, "Figure 5", unit="ms", hardware=GKE, experiment="hops")
_fig_6 = partial(Reported, INTEL, "Figure 6", unit="ms", hardware=GKE, experiment="hops", near="Seldon API to TFS API")
_fig_7 = partial(Reported, INTEL, "Figure 7", hardware=GKE, experiment="scaling")
_graph_2 = partial(Reported, DECI, "Graph 2", model="ResNet50", experiment="batches")
_endpoint = partial(Reported, MXNET, "Hardware optimizations", model="ResNet18", experiment="cost")
_curalate = partial(Reported, MXNET, "Hardware optimizations", near="Elastic Inference", experiment="cost")
_locality = partial(
    Reported,
    MXNET,
    "Locality",
    unit="ms",
    model="Scikit-Learn random forest",
    hardware="ml.c5.large",
    experiment="batches",
)
_scoring = partial(Reported, NAVER, unit="requests/s", model="image-scoring", hardware=NAVERS, experiment="threads")
_pinned_food = partial(
    Reported, NAVER, "Resolving Low RPS", unit="requests/s", model="food-classification", experiment="threads"
)
_final = partial(Reported, NAVER, "Final Performance Measurement", unit="requests/s", experiment="ladder")
_student = partial(Reported, NAVER, "Model Lightweighting", model="image scoring", experiment="distillation")
_sum = partial(Reported, NAVER, "In Conclusion", experiment="cost")

REPORTED: tuple[Reported, ...] = (
    _wire("overhead of JSON over REST, more than", 1000, "ms", "REST API", "one second"),
    _wire("overhead of Tensor, a vector of doubles, over gRPC", 50, "ms", "vector of double elements"),
    _wire("Tensor's deserialization", 15, "ms", "numpy.array"),
    _wire("overhead of Tensor, read by numpy.frombuffer", 35, "ms", "numpy.frombuffer"),
    _wire("ListValue against Tensor", None, "Tensor is faster", "Tensor", "ListValue"),
    _wire("traffic of 1,000 float32 images per second", 4.8, "Gb/s", "float32", model="ResNet50"),
    _wire("bytes of the image for each byte of its JPEG", 50, "times", "JPEG data compression"),
    _wire("decoding the JPEG by OpenCV", 2, "ms", "decompression"),
    _table_1("ResNet, float32, TensorFlow", 26.9, model="ResNet v1.50"),
    _table_1("ResNet, float32, OpenVINO", 4.35, model="ResNet v1.50"),
    _table_1("Inception, float32, TensorFlow", 34.7, model="Inception v3"),
    _table_1("Inception, float32, OpenVINO", 7.17, model="Inception v3"),
    _table_2("ResNet, int8, OpenVINO", 1.60, written="1.60", model="ResNet v1.50"),
    _table_2("Inception, int8, OpenVINO", 3.23, model="Inception v3"),
    _table_3("float32 without VNNI, 28 clients", 763, "images/s", SKYLAKE, hardware=SKYLAKE, clients=28),
    _table_3("int8 without VNNI, 28 clients", 1330, "images/s", SKYLAKE, "1330", hardware=SKYLAKE, clients=28),
    _table_3("float32 with VNNI, 28 clients", 839, "images/s", CASCADE_LAKE, hardware=CASCADE_LAKE, clients=28),
    _table_3("int8 with VNNI, 28 clients", 3117, "images/s", CASCADE_LAKE, "3117", hardware=CASCADE_LAKE, clients=28),
    _table_3("int8 without VNNI, one client", 1.98, "ms", SKYLAKE, hardware=SKYLAKE, clients=1),
    _table_3("float32 with VNNI, one client", 4.25, "ms", CASCADE_LAKE, hardware=CASCADE_LAKE, clients=1),
    _table_3("top-1 of float32 on the 8180", 75.17, "%", SKYLAKE, hardware=SKYLAKE),
    _table_3("top-1 of int8 on the 8180", 75.08, "%", SKYLAKE, hardware=SKYLAKE),
    _table_4("top-1 of the ResNet, float32", 74.91, "%", "ResNet v1.50 float32", model="ResNet v1.50"),
    _table_4("top-1 of the ResNet, int8", 74.87, "%", "ResNet v1.50 int8", model="ResNet v1.50"),
    _table_4("top-1 of the DenseNet, float32", 75.65, "%", "DenseNet169 float32", model="DenseNet169"),
    _table_4("top-1 of the DenseNet, int8", 75.59, "%", "DenseNet169 int8", model="DenseNet169"),
    _table_4("top-1 of both, int8", 77.37, "%", model="Ensemble of Resnet50 and DenseNet169"),
    _fig_5("inference of the DenseNet", 28, model="DenseNet 169"),
    _fig_5("inference of the ResNet", 10, model="ResNet 50"),
    _fig_5("smallest hop between two nodes", 2, near="Seldon microservice"),
    _fig_5("largest hop between two nodes", 4, near="Seldon microservice", written="4ms"),
    _fig_5("call of a model, without its inference", 5, near="Predict1"),
    _fig_5("smallest latency added by the client", 5, near="extra latency"),
    _fig_5("largest latency added by the client", 10, near="extra latency"),
    _fig_6("smallest latency added by a proxy to a model server", 7),
    _fig_6("largest latency added by a proxy to a model server", 10, written="10ms"),
    Reported(INTEL, "Conclusions", "network and serialization in all", 5, "ms", "serialization", experiment="hops"),
    _fig_7("highest rate of linear scaling by added machines", 800, "requests/s", "linear scaling"),
    _fig_7("predictions at that rate", 1600, "predictions/s", "linear scaling", "1600"),
    _fig_7("traffic of about 900 images per second", 50, "Mb/s", "900 images/second"),
    _fig_7("clients per pod at which throughput levels off", 4, "clients", "Kubernetes pods", "four times"),
    _graph_2("images per request at the peak over HTTP", 16, "images", "HTTP"),
    _graph_2("images per request at the peak over gRPC", 8, "images", "gRPC"),
    _graph_2("shared memory", None, "grows to a plateau", "shared memory", "plateau"),
    Reported(
        DECI,
        "Graph 1",
        "fastest protocol of three for one image",
        None,
        "gRPC",
        "batch size 1",
        "gRPC",
        "ResNet50",
        experiment="batches",
    ),
    _locality("a call in the server's process", 9, near="local execution"),
    _locality("the call from another machine", 25, near="serialization/de-serialization", written="25ms"),
    Reported(
        MXNET,
        "Software optimizations",
        "micro-batches",
        None,
        "better economics, at the expense of latency",
        "micro-batching",
        "economics",
        experiment="batching",
    ),
    Reported(
        HELSINKI,
        "Results",
        "protocol that delivers more load",
        None,
        "gRPC",
        "higher loads",
        "gRPC",
        experiment="arrivals",
    ),
    Reported(
        HELSINKI,
        "Results",
        "TorchServe and TensorFlow Serving",
        None,
        "compared, without figures",
        "TorchServe",
        "TensorFlow Serving",
        why_not="The text has no figure of either server, and the benchmark has no peer for them yet.",
    ),
    _scoring("Challenges From a Throughput Perspective", "the base", 1.0, written="1.00", near="POST"),
    _scoring("Resolving Low RPS", "before threads are matched to cores", 2.1, near="previous value", model=""),
    _scoring("Resolving Low RPS", "threads matched to cores", 6.3, written="6.30", near="265"),
    _scoring("Resolving Low RPS", "threads matched, and pinned to physical cores", 7.9, written="7.90", near="131"),
    _pinned_food("a purely neural model, before pinning", 2.5, written="2.5rps", near="7-fold"),
    _pinned_food("a purely neural model, pinned", 17.5, near="446", written="17.50"),
    Reported(
        NAVER,
        "Resolving Low RPS",
        "cores used by 3 workers of 2 threads on 8 cores",
        75,
        "%",
        "worker_num=3",
        why_not="The figure is arithmetic: 3 workers times 2 threads on 8 cores.",
    ),
    _final("food, first", 2.5, near="Food photo classifier", written="2.5rps", model="food-classification"),
    _final("food, last", 84.5, near="food-classification", written="84.50", model="food-classification"),
    _final("image scoring, first", 2.1, near="Image scoring (pod 3)", written="2.1rps", model="image-scoring"),
    _final("image scoring, last", 61.9, near="image-scoring", written="61.90", model="image-scoring"),
    _final("receipts, first", 20, near="receipt classifier", written="20rps", model="receipt-classification"),
    _final("receipts, last", 111.8, near="receipt-classification", model="receipt-classification"),
    _student("edge of the images, before", 384, "pixels", "224*224"),
    _student("edge of the images, after", 224, "pixels", "384*384"),
    _student("error with large images", 0.4007, "MAE", "Img_resize to 224"),
    _student("error with small images", 0.4296, "MAE", "Img_resize to 224"),
    _student("error before the whole recipe", 0.518, "MAE", "MAE value improved", ".518"),
    _student("error after the whole recipe", 0.3876, "MAE", "MAE value improved", ".3876"),
    Reported(
        NAVER,
        "Model Lightweighting",
        "the stronger teacher",
        None,
        "a paper's title, no measurement",
        "Distillation",
        "A Stronger Teacher",
        why_not="The text names the paper, and compares no two teachers by a figure.",
    ),
    _endpoint("the CPU machine", 0.538, "$/h", CPU_MACHINE, hardware=CPU_MACHINE),
    _endpoint("the machine with an accelerator", 0.266, "$/h", SMALL_MACHINE, hardware=SMALL_MACHINE),
    _endpoint("the GPU machine", 4.627, "$/h", GPU_MACHINE, hardware=GPU_MACHINE),
    _endpoint("traffic of each machine", 26, "pictures/min", "identical traffic"),
    _endpoint("latency with an accelerator", 55, "ms", "EIA-accelerated", "55ms", hardware=SMALL_MACHINE),
    _endpoint(
        "speed gain of the accelerator over the CPU machine", 28, "%", "full CPU endpoint", hardware=SMALL_MACHINE
    ),
    _endpoint(
        "saving of the accelerator against the CPU machine", 51, "%", "full CPU endpoint", hardware=SMALL_MACHINE
    ),
    _endpoint("latency with a GPU", 33, "ms", "full GPU endpoint", "33ms", hardware=GPU_MACHINE),
    _endpoint(
        "price of the GPU machine, in prices of the accelerator machine",
        17,
        "times",
        "full GPU endpoint",
        hardware=GPU_MACHINE,
    ),
    _curalate(
        "calls per month up to which Lambda is cheaper than EC2 with Elastic Inference",
        7.5e6,
        "calls",
        written="7.5MM",
        model="ResNet 152",
    ),
    _curalate("least saving by Elastic Inference against GPU instances", 35, "%"),
    _curalate("largest saving by Elastic Inference against GPU instances", 65, "%"),
    _sum("saved in a year, about", 340_000, "dollars", "annual cost", "340 thousand"),
    _sum("price of a GPU machine", 1.306, "$/h", "1-year reserved"),
    _sum("GPUs in each of two countries", 15, "GPUs", "Japan"),
    Reported(
        DECI,
        "Serialization",
        "serialization by NumPy, PyArrow and Protobuf",
        None,
        "compared in a webinar",
        "NumPy native serialization",
        "PyArrow",
        experiment="payloads",
    ),
    Reported(
        HELSINKI,
        "Protocol Selection and Payload Type",
        "binary payloads against JSON",
        None,
        "binary is preferred",
        "JSON",
        "Binary payloads",
        experiment="payloads",
    ),
    Reported(
        DECI,
        "Code Optimization",
        "asynchronous code",
        None,
        "more at a time",
        "Synchronous code",
        "Asynchronous code",
        why_not="The text has no figure, and all code of this server and its client is asynchronous.",
    ),
    Reported(
        HELSINKI,
        "Caching",
        "a cache in front of the model",
        None,
        "lower latency",
        "similar requests",
        "Caching",
        why_not="The text has no figure. docs/cache.md describes the cache of this server.",
    ),
    Reported(
        DECI,
        "Hardware Metrics",
        "ideal use of a GPU",
        80,
        "%",
        "In production, consistency",
        why_not="The test machines have no GPU.",
    ),
    Reported(
        MXNET,
        "Machine learning models",
        "largest share of inference in an application's compute costs",
        90,
        "%",
        "compute costs",
        why_not="The figure is a share of whole companies' costs.",
    ),
    Reported(
        NAVER,
        "Throughput and Latency Measurement",
        "least improvement that the CPU servers needed",
        10,
        "times",
        "performance improvement",
        why_not="The figure is the gap to GPU servers, and the test machines have no GPU.",
    ),
    Reported(
        NAVER,
        "Traffic Mirroring",
        "mirroring before production",
        1,
        "month",
        "validation",
        "a month",
        why_not="No month of production traffic is at hand. `ensemble load --replay` and shadow members mirror "
        "traffic.",
    ),
    Reported(
        MXNET,
        "Software optimizations",
        "compilation by TVM",
        None,
        "compared in a picture",
        "benchmarks",
        "TVM",
        why_not="The figures are another paper's, and OpenVINO compiles the models here.",
    ),
    Reported(
        MXNET,
        "Software optimizations",
        "quantization-aware training",
        None,
        "named, not measured",
        "Quantization may also be run in-training",
        "quantization-aware training",
        why_not="Quantization after training loses less than 0.4 points here (`precision`), so little is left to gain.",
    ),
    Reported(
        INTEL,
        "Threading Configuration",
        "OpenMP against TBB",
        None,
        "OpenMP is better in isolated CPUs",
        "isolated CPU resources",
        "OpenMP",
        why_not="OpenVINO's wheel uses TBB, so OMP_* variables have no effect.",
    ),
    Reported(
        DECI,
        "Hardware Metrics",
        "watts",
        None,
        "a metric to watch",
        "power consumption",
        "Watt usage",
        why_not="The test machines have no readable RAPL counters. `ensemble load` shows joules on machines that "
        "have them.",
    ),
)
