"""Trains a member of the ensemble: a CIFAR-size ResNet or DenseNet, on a GPU if there is one, else on the CPU.

    python -m scripts.train resnet --data train.zip --checkpoint checkpoints/resnet.pt --output models

Needs the `train` extra (PyTorch). Stops and resumes at any epoch: the same command goes on from the checkpoint. With
`--output`, the finished model is written into that model repository as version 1, in float16.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from models.repository import sha256
from scripts.dataset import Dataset, decode
from scripts.errors import ScriptError, fraction, positive, told_in_one_line

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ImportError as err:
    raise SystemExit("error: training needs PyTorch: make train, or pip install 'ensemble-serving[train]'") from err

from scripts.architectures import ARCHITECTURES, SMALLEST, whiten
from scripts.muon import Muon

# Of 5,000 images of 32x32: enough for the statistics of 2x2 patches.
WHITENING_PIXELS = 5000 * 32 * 32
# glibc's numbers for `mallopt`.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


@dataclass(frozen=True)
class Recipe:
    """What decides the result of a training run, recorded with the model."""

    architecture: str
    augmentation: str
    epochs: int
    seed: int
    batch_size: int = 2000
    forward_batch_size: int = 500  # what goes through the network at once; batch norm sees no more
    learning_rate: float = 0.24
    momentum: float = 0.6
    bias_learning_rate: float = 0.053
    head_learning_rate: float = 0.67
    sgd_momentum: float = 0.85
    weight_decay: float = 2e-6
    label_smoothing: float = 0.2
    translate_px: int = 3
    cutout_px: int = 6
    zoom: float = 0.1
    contrast: float = 0.1
    mix: str = "none"
    mix_probability: float = 0.5


def load_images(dataset: Dataset, size: int, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Decode a dataset as the server does.

    Args:
        dataset: the images; of those that aren't square the centre is taken.
        size: height and width to resize them to, pixels.
        classes: the class names in order of index.

    Returns:
        Every image as uint8 [N,3,size,size] in BGR order, and its class index as int64 [N].

    Raises:
        ScriptError: a class is none of `classes`, or an image can't be decoded.
    """
    index = {name: i for i, name in enumerate(classes)}
    if unknown := [name for name in dataset.classes if name not in index]:
        raise ScriptError(f"{dataset.path} has the class {unknown[0]!r}, which is none of {', '.join(classes)}")
    images = np.empty((len(dataset), size, size, 3), np.uint8)
    labels = np.empty(len(dataset), np.int64)
    for i, (encoded, name) in enumerate(tqdm(dataset.read(), "decode", len(dataset), unit="img", delay=1)):
        images[i], labels[i] = decode(dataset.names[i], encoded, (size, size), 1.0), index[name]
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)


def warp(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Zoom and translate each image about its centre with reflected borders; `shift` is in pixels, [N,2]."""
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = shift * 2 / images.shape[-1]
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def box(images: Tensor, size: Tensor) -> Tensor:
    """A square about a pixel chosen at random in each image, cut off at the borders: bool [N,1,H,W].

    Args:
        images: [N,C,H,W].
        size: of each square, whole pixels, int64 [N,1,1,1].
    """
    n, _, height, width = images.shape
    above = torch.arange(height, device=images.device).view(1, 1, -1, 1)
    left = torch.arange(width, device=images.device).view(1, 1, 1, -1)
    rows = above - torch.randint(height, (n, 1, 1, 1), device=images.device) + size // 2
    columns = left - torch.randint(width, (n, 1, 1, 1), device=images.device) + size // 2
    return (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)


def cutout(images: Tensor, size: int) -> Tensor:
    """Set one square of `size` pixels, anywhere in each image, to zero (DeVries and Taylor 2017)."""
    return images.masked_fill(box(images, torch.full((len(images), 1, 1, 1), size, device=images.device)), 0.0)


def augment(images: Tensor, recipe: Recipe) -> Tensor:
    """Translation and cutout; with `zoom` also zoom, contrast and brightness."""
    n = len(images)
    shift = torch.randint(-recipe.translate_px, recipe.translate_px + 1, (n, 2), device=images.device).float()
    if recipe.augmentation == "shift":
        return cutout(warp(images, torch.ones(n, device=images.device), shift), recipe.cutout_px)
    scale = 1 + recipe.zoom * (2 * torch.rand(n, device=images.device) - 1)
    gain = 1 + recipe.contrast * (2 * torch.rand(n, 1, 1, 1, device=images.device) - 1)
    offset = recipe.contrast * (2 * torch.rand(n, 1, 1, 1, device=images.device) - 1)
    return cutout(warp(images, scale, shift) * gain + offset, recipe.cutout_px)


def mix(images: Tensor, targets: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Put a part of another image of the batch into some of the images, and the same part of its class into theirs.

    The part is uniform in 0 to 1: with `cutmix` a box of that area, less what falls outside (Yun et al. 2019,
    arXiv:1905.04899), with `mixup` a share of every pixel (Zhang et al. 2017, arXiv:1710.09412).

    Args:
        images: float [N,C,H,W].
        targets: probabilities of the classes, float [N,classes].
        recipe: which of the two, and the fraction of the images that it is done to.
    """
    n = len(images)
    others = torch.randperm(n).to(images.device)
    part = torch.rand(n, 1, 1, 1, device=images.device)
    part = part * (torch.rand(n, 1, 1, 1, device=images.device) < recipe.mix_probability)
    if recipe.mix == "cutmix":
        taken = box(images, (part.sqrt() * images.shape[2]).round().long())
        part = taken.float().mean((2, 3), keepdim=True)
        mixed = torch.where(taken, images[others], images)
    else:
        mixed = torch.lerp(images, images[others], part)
    return mixed, torch.lerp(targets, targets[others], part.view(n, 1))


def batches(images: Tensor, labels: Tensor, recipe: Recipe, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled, augmented batches; each image is mirrored in every other epoch (Jordan 2024, arXiv:2404.00498).

    The second of a pair are the classes' probabilities, float [N,classes].
    """
    mirror_parity = torch.arange(len(images), device=images.device) * 2654435761 % 97 % 2
    mirrored = (mirror_parity + epoch) % 2 == 1
    size, classes = min(recipe.batch_size, len(images)), int(labels.max()) + 1
    for rows in torch.randperm(len(images)).to(images.device).split(size):
        if len(rows) == size:
            batch = images[rows]
            batch = torch.where(mirrored[rows].view(-1, 1, 1, 1), batch.flip(3), batch)
            batch, targets = augment(batch, recipe), F.one_hot(labels[rows], classes).float()
            yield (batch, targets) if recipe.mix == "none" else mix(batch, targets, recipe)


def optimizers(model: nn.Sequential, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the convolutions, SGD for biases and the head; the loss is a sum over the batch, which scales SGD's."""
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = recipe.weight_decay * recipe.batch_size
    groups = [
        {
            "params": [parameter for parameter in learnt if parameter.ndim == dimensions],
            "lr": rate,
            "weight_decay": decay / rate,
        }
        for dimensions, rate in ((1, recipe.bias_learning_rate), (2, recipe.head_learning_rate))
    ]
    convolutions = [parameter for parameter in learnt if parameter.ndim == 4]
    return [
        Muon(convolutions, recipe.learning_rate, recipe.momentum),
        torch.optim.SGD(groups, momentum=recipe.sgd_momentum, nesterov=True),
    ]


def sum_gradients(model: nn.Module, images: Tensor, targets: Tensor, recipe: Recipe) -> float:
    """Add the gradients of a batch, a part that fits a CPU's caches at a time; returns the loss summed over images.

    Args:
        model: from images to logits.
        images: normalized, float [N,3,H,W].
        targets: class indices, int64 [N], or the classes' probabilities, float [N,classes].
        recipe: the size of a part, and the label smoothing.
    """
    total = 0.0
    for part, truth in zip(
        images.split(recipe.forward_batch_size), targets.split(recipe.forward_batch_size), strict=True
    ):
        with torch.autocast(part.device.type, torch.bfloat16):
            logits = model(part.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits.float(), truth, label_smoothing=recipe.label_smoothing, reduction="sum")
        loss.backward()
        total += float(loss)
    return total


def decay(progress: float) -> float:
    """The learning rates' factor, linear from 1 to 0; `progress` runs from 0 to 1 over the whole training."""
    return 1 - progress


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Top-1 on normalized images, a fraction."""
    model.eval()
    hits = sum(
        int((model(batch).argmax(1) == truth).sum())
        for batch, truth in zip(images.split(500), labels.split(500), strict=True)
    )
    return hits / len(labels)


def train(
    recipe: Recipe, data: Path, validation: Path | None, size: int, checkpoint: Path, initial: Path | None = None
) -> None:
    """Train to the end of the recipe, saving `checkpoint` after every epoch and resuming from it.

    Args:
        recipe: what decides the result.
        data: the images to learn, a zip or folder of `<class>/*.jpg`.
        validation: such images to print top-1 of after each epoch.
        size: height and width, pixels.
        checkpoint: written every epoch.
        initial: a finished run's checkpoint, to begin with its weights.

    Raises:
        ScriptError: the checkpoint was made with another recipe, other data or another size; `initial` is not at its
            end, or of other classes or another size; either is no checkpoint, or another architecture's; or see
            `load_images`.
        DatasetError: a path holds no labelled images.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Dataset.open(data)
    begun = {
        "recipe": asdict(recipe),
        "classes": list(dataset.classes),
        "size": size,
        "data_sha256": sha256(data) if data.is_file() else None,
        "initial": None,
    }
    origin = None if initial is None else _load(initial)
    if origin is not None:
        for what in ("classes", "size"):
            if origin[what] != begun[what]:
                raise ScriptError(f"{initial} was made with another {what}: {origin[what]}, not {begun[what]}")
        if origin["epoch"] < origin["recipe"]["epochs"]:
            raise ScriptError(
                f"{initial} is at epoch {origin['epoch']} of {origin['recipe']['epochs']}; finish it first"
            )
        begun["initial"] = {what: origin.get(what) for what in ("recipe", "data_sha256", "initial")}
    torch.manual_seed(recipe.seed)
    model: nn.Sequential = ARCHITECTURES[recipe.architecture](len(dataset.classes))
    saved = _resume(checkpoint, begun)
    if (weights := saved or origin) is not None:
        try:
            model.load_state_dict(weights["model"])
        except RuntimeError as err:
            name = checkpoint if saved is not None else initial
            raise ScriptError(f"{name} holds another architecture's weights; name another file: {err}") from err
    # The smaller first, so that a class that isn't the model's is told at once.
    held = load_images(Dataset.open(validation), size, dataset.classes) if validation is not None else None
    raw, labels = load_images(dataset, size, dataset.classes)
    mean = raw.float().mean((0, 2, 3))
    std = raw.float().std((0, 2, 3))

    def normalize(pixels: Tensor) -> Tensor:
        normal = (pixels.float() - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)
        return normal.contiguous(memory_format=torch.channels_last).to(device)

    images, labels = normalize(raw), labels.to(device)
    held_out = None if held is None else (normalize(held[0]), held[1].to(device))

    if weights is None:
        # Every so many, because they are sorted by class.
        whiten(model, images[:: -(-images[:, 0].numel() // WHITENING_PIXELS)].cpu())
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    updates = optimizers(model, recipe)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in updates]
    first_epoch = 0
    if saved is not None:
        for optimizer, state in zip(updates, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        _set_random_state(saved["random"])
        first_epoch = saved["epoch"]

    steps = max(1, len(images) // recipe.batch_size)
    for epoch in range(first_epoch, recipe.epochs):
        model.train()
        started, loss_sum = time.monotonic(), 0.0
        progress_bar = tqdm(total=steps, desc=f"epoch {epoch + 1}/{recipe.epochs}", unit="batch", leave=False)
        for step, (batch, truth) in enumerate(batches(images, labels, recipe, epoch)):
            factor = decay((epoch * steps + step) / (recipe.epochs * steps))
            for optimizer, rates in zip(updates, peaks, strict=True):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
            model.zero_grad()
            loss = sum_gradients(model, batch, truth, recipe)
            for optimizer in updates:
                optimizer.step()
            loss_sum += loss / len(batch)
            progress_bar.update()
            progress_bar.set_postfix(loss=f"{loss_sum / (step + 1):.3f}")
        progress_bar.close()
        top1 = f", top-1 {accuracy(model, *held_out):.4f}" if held_out else ""
        seconds = time.monotonic() - started
        print(f"epoch {epoch + 1}: loss {loss_sum / steps:.4f}{top1}, {seconds:.0f} s", flush=True)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        partial = checkpoint.with_name(f"{checkpoint.name}.partial")
        torch.save(
            {
                **begun,
                "mean": mean.tolist(),
                "std": std.tolist(),
                "torch": str(torch.__version__),
                "device": device.type,
                "epoch": epoch + 1,
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in updates],
                "random": _random_state(),
            },
            partial,
        )
        partial.replace(checkpoint)


def _load(checkpoint: Path) -> dict[str, Any]:
    """What a run saved, on the CPU.

    Raises:
        ScriptError: the file is no checkpoint.
    """
    try:
        saved: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        missing = {"recipe", "classes", "size", "epoch", "model"} - saved.keys()
    # Over what isn't a checkpoint, PyTorch stumbles with errors of any type.
    except Exception as err:
        raise ScriptError(f"{checkpoint} is no checkpoint of scripts.train: {err!r}") from err
    if missing:
        raise ScriptError(f"{checkpoint} is no checkpoint of scripts.train: it has no {', '.join(sorted(missing))}")
    return saved


def _resume(checkpoint: Path, begun: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run saved; None if there is none.

    Raises:
        ScriptError: that run began with something else.
    """
    if not checkpoint.exists():
        return None
    saved = _load(checkpoint)
    for what, value in begun.items():
        if saved.get(what) != value:
            raise ScriptError(
                f"{checkpoint} was made with another {what.replace('_', ' ')}: {saved.get(what)}, not {value}; "
                "name another file by --checkpoint"
            )
    return saved


def _random_state() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state[1:])


def keep_freed_memory() -> None:
    """Let glibc use large blocks again, not return them to the kernel; on a CPU that took a fifth of the time."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architecture", choices=sorted(ARCHITECTURES))
    parser.add_argument("--data", type=Path, required=True, help="zip or folder of <class>/*.jpg")
    parser.add_argument("--validation", type=Path, help="zip or folder to print top-1 of after each epoch")
    parser.add_argument("--checkpoint", type=Path, required=True, help="written every epoch, resumed from")
    parser.add_argument(
        "--initial", type=Path, metavar="CHECKPOINT", help="a finished run's, whose weights to begin with"
    )
    parser.add_argument("--size", type=int, default=32, help="height and width to resize images to, pixels")
    parser.add_argument("--augmentation", choices=("shift", "zoom"), default="shift")
    parser.add_argument("--epochs", type=positive, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="REPOSITORY", help="model repository to export to at the end")
    parser.add_argument("--name", help="the model's name there (default: the architecture's)")
    parser.add_argument("--mirror", action="store_true", help="export a model that also looks at the mirror image")
    parser.add_argument("--replace", action="store_true", help="let an existing version 1 give way")
    parser.add_argument(
        "--learning-rate", type=float, default=Recipe.learning_rate, help="of the convolutions, at first"
    )
    parser.add_argument("--translate", type=int, default=Recipe.translate_px, help="pixels, at most")
    parser.add_argument("--cutout", type=int, default=Recipe.cutout_px, help="pixels")
    parser.add_argument("--zoom", type=fraction, default=Recipe.zoom, help="fraction, at most")
    parser.add_argument("--contrast", type=fraction, default=Recipe.contrast, help="fraction, at most")
    parser.add_argument("--mix", choices=("none", "cutmix", "mixup"), default=Recipe.mix, help="images with each other")
    parser.add_argument("--mix-probability", type=fraction, default=Recipe.mix_probability, help="of an image")
    parser.add_argument("--label-smoothing", type=fraction, default=Recipe.label_smoothing)
    args = parser.parse_args()
    if args.size < SMALLEST:
        parser.error(f"--size must be {SMALLEST} or more")
    recipe = Recipe(
        args.architecture,
        args.augmentation,
        args.epochs,
        args.seed,
        learning_rate=args.learning_rate,
        translate_px=args.translate,
        cutout_px=args.cutout,
        zoom=args.zoom,
        contrast=args.contrast,
        mix=args.mix,
        mix_probability=args.mix_probability,
        label_smoothing=args.label_smoothing,
    )
    keep_freed_memory()
    with told_in_one_line():
        run(recipe, args)


def run(recipe: Recipe, args: argparse.Namespace) -> None:
    """Train, then export if `args.output` is set.

    Raises:
        ModelError: version 1 exists already, or is to be replaced but not what was quantized from it, or the name
            can't be a model's; told before training, not after.
        ScriptError: see `train`.
    """
    if args.output is None:
        print(json.dumps(asdict(recipe)))
        train(recipe, args.data, args.validation, args.size, args.checkpoint, args.initial)
        return
    # Imported only here: training by itself, on a lent GPU say, needs PyTorch but not OpenVINO.
    from scripts.export import export
    from scripts.intermediate import check_free, check_name, check_replaceable, describe

    name = args.name or recipe.architecture
    check_name(name)
    if args.replace:
        check_replaceable(args.output, name, 1)
    else:
        check_free(args.output, name, 1, "name another by --name, or pass --replace")
    print(json.dumps(asdict(recipe)))
    train(recipe, args.data, args.validation, args.size, args.checkpoint, args.initial)
    folder = export(
        args.checkpoint,
        args.output,
        name,
        data=args.data,
        validation=args.validation,
        replace=args.replace,
        mirror=args.mirror,
    )
    print(f"wrote {describe(folder)}")


if __name__ == "__main__":
    main()
