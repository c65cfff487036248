"""The figures that the five documents report, which this project answers: measured by an experiment, or why not here.

The titles of four documents, and the hardware of most figures, are not in the notes that these figures come from.
"""

from __future__ import annotations

from dataclasses import dataclass

BOOSTING = "Performance Boosting in Seldon (Intel and Seldon, 2019)"
FACTORS = "the document on the five factors of inference"
PROTOCOLS = "the document on REST against gRPC"
COSTS = "the document on the cost of a prediction"
PRACTICE = "the document on threads, distillation and mirroring"

UNKNOWN = "not recorded"
ONE_TEACHER = "All students here learn from the same two members together, whose combination is the strongest at hand."


@dataclass(frozen=True)
class Reported:
    """A figure.

    Attributes:
        document: that reports it.
        place: in the document.
        what: is reported; unique within an experiment.
        value: the figure; None for a finding in words.
        unit: of the value; of a finding, the finding itself.
        hardware: that it was measured on.
        experiment: that measures it here; None if none does.
        why_not: why it can't be measured here; None if it is.
    """

    document: str
    place: str
    what: str
    value: float | None
    unit: str
    hardware: str = UNKNOWN
    experiment: str | None = None
    why_not: str | None = None

    @property
    def text(self) -> str:
        """The figure for people."""
        return self.unit if self.value is None else f"{self.value:,.15g} {self.unit}"


def of(experiment: str) -> list[Reported]:
    """The figures that an experiment measures."""
    return [each for each in REPORTED if each.experiment == experiment]


def _measured(
    experiment: str, document: str, place: str, *figures: tuple[str, float | None, str]
) -> tuple[Reported, ...]:
    return tuple(Reported(document, place, *figure, experiment=experiment) for figure in figures)


def _not_here(why: str, document: str, place: str, *figures: tuple[str, float | None, str]) -> tuple[Reported, ...]:
    return tuple(Reported(document, place, *figure, why_not=why) for figure in figures)


REPORTED: tuple[Reported, ...] = (
    *_measured(
        "payloads",
        BOOSTING,
        "Fig. 1",
        ("overhead of an image of 224x224 as JSON over REST, more than", 1000, "ms"),
        ("overhead of the image as repeated numbers (Tensor) over gRPC", 50, "ms"),
        ("overhead of the image as repeated numbers, parsed faster", 35, "ms"),
        ("the image as a ListValue", None, "slower than Tensor"),
        ("bytes of the image as floats for each byte of its JPEG", 50, "times"),
        ("decoding the JPEG", 2, "ms"),
        ("traffic of 1,000 float32 images per second", 4.8, "Gb/s"),
    ),
    *_measured(
        "precision",
        BOOSTING,
        "Tables 1 to 4",
        ("latency of ResNet-50, float32, in its framework", 26.9, "ms"),
        ("latency of ResNet-50, float32, OpenVINO", 4.35, "ms"),
        ("latency of ResNet-50, int8, OpenVINO", 1.60, "ms"),
        ("latency of DenseNet-169, float32, in its framework", 34.7, "ms"),
        ("latency of DenseNet-169, float32, OpenVINO", 7.17, "ms"),
        ("latency of DenseNet-169, int8, OpenVINO", 3.23, "ms"),
        ("images per second for many clients, float32", 839, "images/s"),
        ("images per second for many clients, int8", 3117, "images/s"),
        ("top-1 of the ResNet, float32", 74.91, "%"),
        ("top-1 of the ResNet, int8", 74.87, "%"),
        ("top-1 of the DenseNet, float32", 75.65, "%"),
        ("top-1 of the DenseNet, int8", 75.59, "%"),
        ("top-1 of both, int8", 77.37, "%"),
    ),
    *_not_here(
        "The notes name neither the model nor the setups of this pair.",
        BOOSTING,
        "Tables 1 to 4",
        ("images per second for many clients, lower of a pair", 763, "images/s"),
        ("images per second for many clients, higher of a pair", 1330, "images/s"),
    ),
    *_not_here(
        "TensorFlow is no dependency here, PyTorch stands for it; the notes have no figure of Inception v3.",
        BOOSTING,
        "Tables 1 to 4",
        ("latency in TensorFlow, and of Inception v3", None, "compared"),
    ),
    *_measured(
        "hops",
        BOOSTING,
        "Figs. 5 and 6",
        ("least of a hop between two nodes", 2, "ms"),
        ("most of a hop between two nodes", 4, "ms"),
        ("least that the client adds", 5, "ms"),
        ("most that the client adds", 10, "ms"),
        ("least that a proxy to a model server adds", 7, "ms"),
        ("most that a proxy to a model server adds", 10, "ms"),
    ),
    *_measured(
        "scaling",
        BOOSTING,
        "Fig. 7",
        ("rate up to which throughput grows linearly", 800, "requests/s"),
        ("traffic at that rate", 50, "Mb/s"),
        ("clients per pod", 4, "clients"),
    ),
    *_measured(
        "batches",
        FACTORS,
        UNKNOWN,
        ("images per request at the peak over HTTP", 16, "images"),
        ("images per request at the peak over gRPC", 8, "images"),
        ("images per request at the peak in one process", None, "rises to the end"),
    ),
    *_measured(
        "arrivals",
        PROTOCOLS,
        UNKNOWN,
        ("which protocol delivers more requests per second", None, "gRPC"),
    ),
    *_not_here(
        "TensorFlow Serving is on no package index; only its images and Debian archive have it.",
        PROTOCOLS,
        UNKNOWN,
        ("TorchServe against TensorFlow Serving", None, "compared"),
    ),
    *_measured(
        "threads",
        PRACTICE,
        UNKNOWN,
        ("rate of one setting of workers and threads, the first of a row", 1.00, "requests/s"),
        ("rate of one setting, the second of the row", 2.1, "requests/s"),
        ("rate of one setting, the third of the row", 6.30, "requests/s"),
        ("rate of one setting, the last of the row", 7.90, "requests/s"),
        ("rate before threads were matched to cores", 2.5, "requests/s"),
        ("rate after threads were matched to cores", 17.5, "requests/s"),
    ),
    *_measured(
        "ladder",
        PRACTICE,
        UNKNOWN,
        ("first rate of the first ladder", 2.5, "requests/s"),
        ("last rate of the first ladder", 84.5, "requests/s"),
        ("first rate of the second ladder", 2.1, "requests/s"),
        ("last rate of the second ladder", 61.9, "requests/s"),
        ("first rate of the third ladder", 20, "requests/s"),
        ("last rate of the third ladder", 111.8, "requests/s"),
    ),
    *(
        Reported(COSTS, UNKNOWN, f"latency at ${price}/h", latency, "ms", f"a machine at ${price}/h", "cost")
        for price, latency in (("0.538", 76), ("0.266", 55), ("4.627", 33))
    ),
    *_measured(
        "cost",
        COSTS,
        UNKNOWN,
        ("calls a month at which always-on is as dear as per call", 7.5e6, "calls"),
        ("least saving", 35, "%"),
        ("most saving", 65, "%"),
        ("the sum of the worked example", 343_000, "dollars"),
    ),
    *_not_here(
        ONE_TEACHER,
        PRACTICE,
        UNKNOWN,
        ("which teacher is better for a student", None, "the stronger one"),
    ),
    *_measured(
        "distillation",
        PRACTICE,
        UNKNOWN,
        ("edge of a student's images, before", 384, "pixels"),
        ("edge of a student's images, after", 224, "pixels"),
        ("change of the mean absolute error", -25, "%"),
    ),
)
