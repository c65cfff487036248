"""What `ensemble benchmark` serves: models and photographs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import openvino as ov
import yaml
from openvino import opset13 as op

from deployments.repository.repository import DEFAULT_ROOT, find
from deployments.repository.writing import write_metadata
from scripts.dataset import Dataset
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
CIFAR_SIZE, IMAGENET_SIZE = (32, 32), (224, 224)
SMALL_EDGE, SMALL_QUALITY = 224, 80
LARGE_SIZE, LARGE_QUALITY = (500, 375), 95
MOST_IMAGES = 32
IMAGENET_NAMES = {"resnet": "resnet50", "densenet": "densenet169"}


@dataclass(frozen=True)
class Workload:
    """Two models and the photographs that are sent.

    Attributes:
        name: `embedded`, `imagenet` or `trivial`.
        repository: a model repository with `resnet` and `densenet`.
        version: of both.
        size: height and width that they take, pixels.
        images: encoded photographs.
        precision: OpenVINO's inference precision of what is not int8; None for its own choice.
        stops: the shares of the photographs that a cascade's early stages answer; None for the shipped thresholds.
        repeats: the share of the requests whose image came before; None to send the same few images in turn.
    """

    name: str
    repository: Path
    version: int
    size: tuple[int, int]
    images: tuple[Path, ...]
    precision: str | None
    stops: tuple[float, ...] | None = None
    repeats: float | None = None

    @property
    def models(self) -> list[Path]:
        """Each member's file."""
        return [find(self.repository, name, self.version).path for name in MEMBERS]

    @property
    def crop_ratio(self) -> float:
        """The share of the shorter side that the members' centre crop keeps."""
        return float(find(self.repository, MEMBERS[0], self.version).input.get("crop_ratio", 1.0))

    def config(self, placement: Placement, port: int, grpc_port: int, file: Path | None = None) -> dict[str, Any]:
        """The shipped configuration of a placement, or of a file, with these models and ports."""
        config: dict[str, Any] = yaml.safe_load((file or CONFIGS[placement]).read_text(encoding="utf-8"))
        config["http_options"]["port"] = port
        config["grpc_options"]["port"] = grpc_port
        args = config["applications"][0]["args"]
        args["model_repository"] = str(self.repository.resolve())
        for member in args["members"]:
            member["version"] = self.version
            if self.precision is not None:
                member["inference_precision"] = self.precision
        cascade = args.get("ensemble", {}).get("cascade")
        if cascade is not None and self.stops is not None:
            from lab.benchmark.stopping import thresholds

            models = [find(self.repository, name, self.version) for name in cascade["order"]]
            weights = {member["name"]: member.get("weight", 1.0) for member in args["members"]}
            photographs = Dataset(self.images[0].parent, tuple(path.name for path in self.images))
            cascade["exit_at"] = thresholds(models, weights, photographs, self.stops)
        return config


def workload(name: str, precision: Precision) -> Workload:
    """A workload by name, its models made if they are not there yet.

    Raises:
        ScriptError: there is no such workload, or its models can't be made.
    """
    hint = "f32" if precision == "float32" else None
    version = 1 if precision == "float32" else 2
    if name == "embedded":
        return Workload(name, DEFAULT_ROOT, version, CIFAR_SIZE, photographs("small"), hint)
    if name == "imagenet":
        return Workload(name, imagenet_models(), version, IMAGENET_SIZE, photographs("large"), hint)
    if name == "trivial":
        return Workload(name, trivial(CACHE / name, CIFAR_SIZE), 1, CIFAR_SIZE, photographs("small"), None)
    raise ScriptError(f"there is no workload {name!r}; there are embedded, imagenet and trivial")


def photographs(kind: Literal["small", "large"]) -> tuple[Path, ...]:
    """Photographs of about 15 KB or about 100 KB, from `ENSEMBLE_DATA` or else from scikit-image.

    Raises:
        ScriptError: there are none.
    """
    source = "data" if "ENSEMBLE_DATA" in os.environ else "scikit-image"
    folder = CACHE / f"photographs-{kind}-{source}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            for number, image in enumerate(originals()):
                if kind == "small":
                    resized, quality = square(image, SMALL_EDGE), SMALL_QUALITY
                else:
                    resized, quality = cv2.resize(image, LARGE_SIZE, interpolation=cv2.INTER_AREA), LARGE_QUALITY
                cv2.imwrite(str(Path(temporary) / f"{number:02}.jpg"), resized, [cv2.IMWRITE_JPEG_QUALITY, quality])
            Path(temporary).rename(folder)
            Path(temporary).mkdir()
    return tuple(sorted(folder.iterdir()))


def originals() -> list[Any]:
    """Photographs of their own sizes, uint8 [H,W,3] BGR, from `ENSEMBLE_DATA` or else from scikit-image.

    Raises:
        ScriptError: there are none.
    """
    data = os.environ.get("ENSEMBLE_DATA")
    if data is not None:
        paths = sorted((Path(data) / "photos").glob("*"))[:MOST_IMAGES]
        images = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in paths]
    else:
        try:
            from skimage import data as pictures
        except ImportError as err:
            raise ScriptError("set ENSEMBLE_DATA to a folder with photos/, or pip install scikit-image") from err
        images = [cv2.cvtColor(image, cv2.COLOR_RGB2BGR) for image in (pictures.astronaut(), pictures.cat())]
    images = [image for image in images if image is not None]
    if not images:
        raise ScriptError(f"there are no photographs in {data}/photos")
    return images


def square(image: Any, edge: int) -> Any:
    """The centre of an image, of so many pixels a side."""
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    return cv2.resize(image[top : top + side, left : left + side], (edge, edge), interpolation=cv2.INTER_AREA)


def trivial(root: Path, size: tuple[int, int]) -> Path:
    """Two models in a folder that answer the same whatever they see: what is left is the cost of serving.

    They take images of a height and width in pixels. Gives the folder.
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
    """ResNet-50 v1.5 and DenseNet-169 with random weights, in float16 and int8; needs PyTorch and NNCF once.

    Raises:
        ScriptError: they can't be made.
    """
    root = CACHE / "imagenet"
    for name in MEMBERS:
        if (root / name / "2" / "metadata.json").exists():
            continue
        with tempfile.TemporaryDirectory() as temporary:
            # Calibration takes labelled folders; with random weights any label does.
            shutil.copytree(photographs("large")[0].parent, Path(temporary) / "photographs")
            shutil.rmtree(root / name, ignore_errors=True)
            flags = ["--weights", "random", "--name", name, "--repository", str(root), "--int8", "--data", temporary]
            # Of random weights no accuracy can be lost, and the answers to so few images may all be others.
            flags += ["--samples", "32", "--max-drop", "100"]
            command = [sys.executable, "-P", "-m", "scripts.prepare", IMAGENET_NAMES[name], *flags]
            if subprocess.run(command, cwd=ROOT).returncode != 0:  # noqa: S603
                raise ScriptError(
                    "the ImageNet models need PyTorch and NNCF: make train, or pip install '.[train,quantize]'"
                )
    return root
