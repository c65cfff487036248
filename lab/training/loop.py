"""The training run: epochs over augmented images, and a checkpoint after each, which a run resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm.optim
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from lab.training.architectures import network, whiten
from lab.training.data import TrainingData
from lab.training.recipe import Recipe
from lab.training.teachers import LOSSES
from scripts.errors import ScriptError


def arithmetic(device: torch.device) -> torch.dtype:
    """Return the format that training computes in: bfloat16 where the processor has it, else float32."""
    if device.type == "cpu" and not torch.cpu.get_capabilities().get("avx512_bf16", False):
        return torch.float32
    return torch.bfloat16


class Muon(timm.optim.Muon):
    """Muon that first gives each convolution the norm that its number of output channels asks for."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update every weight that has a gradient once."""
        for weight in (each for group in self.param_groups for each in group["params"] if each.grad is not None):
            weight.mul_(len(weight) ** 0.5 / weight.norm())
        super().step(closure)


def optimizers(model: nn.Sequential, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Make Muon for the convolutions, SGD for biases and the head; the loss sums over the batch, which scales SGD's."""
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
        Muon(
            convolutions,
            lr=recipe.learning_rate,
            weight_decay=0.0,
            momentum=recipe.momentum,
            nesterov=True,
            ns_steps=3,
            ns_coefficients="original",
            adjust_lr_fn=None,
        ),
        torch.optim.SGD(groups, momentum=recipe.sgd_momentum, nesterov=True),
    ]


# Of 5,000 images of 32x32: enough for the statistics of 2x2 patches.
WHITENING_PIXELS = 5000 * 32 * 32


def sum_gradients(
    model: nn.Module, images: Tensor, targets: Tensor, recipe: Recipe, taught: Tensor | None = None
) -> float:
    """Add the gradients of a batch, a part that fits a CPU's caches at a time; returns the loss summed over images.

    Args:
        model: from images to logits.
        images: normalized, float [N,3,H,W].
        targets: class indices, int64 [N], or the classes' probabilities, float [N,classes].
        recipe: the size of a part, the label smoothing, and the teachers' weight and loss.
        taught: the teachers' probabilities, float [N,classes]; None without teachers.
    """
    total, size = torch.zeros((), device=images.device), recipe.forward_batch_size
    lessons: Sequence[Tensor | None] = [None] * len(images) if taught is None else taught.split(size)
    for part, truth, lesson in zip(images.split(size), targets.split(size), lessons, strict=False):
        precision = arithmetic(part.device)
        with torch.autocast(part.device.type, precision, enabled=precision is torch.bfloat16):
            logits = model(part.contiguous(memory_format=torch.channels_last)).float()
        loss = F.cross_entropy(logits, truth, label_smoothing=recipe.label_smoothing, reduction="sum")
        if lesson is not None:
            soft = LOSSES[recipe.teacher_loss](logits, lesson)
            loss = torch.lerp(loss, soft, recipe.teacher_weight)
        loss.backward()
        total += loss.detach()
    # Once for all parts, because a GPU stands still while a number is fetched from it.
    return float(total)


def decay(progress: float) -> float:
    """Return the learning rates' factor, linear from 1 to 0; `progress` runs from 0 to 1 over the whole training."""
    return 1 - progress


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Compute top-1 on normalized images, a fraction."""
    model.eval()
    hits = sum(
        int((model(batch).argmax(1) == truth).sum())
        for batch, truth in zip(images.split(500), labels.split(500), strict=True)
    )
    return hits / len(labels)


def load(checkpoint: Path) -> dict[str, Any]:
    """Load a run's checkpoint on the CPU. Raises ScriptError if the file is no checkpoint."""
    try:
        saved: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        missing = {"recipe", "classes", "size", "epoch", "model"} - saved.keys()
    # Over what isn't a checkpoint, PyTorch stumbles with errors of any type.
    except Exception as err:
        raise ScriptError(f"{checkpoint} is no checkpoint of ensemble train: {err!r}") from err
    if missing:
        raise ScriptError(f"{checkpoint} is no checkpoint of ensemble train: it has no {', '.join(sorted(missing))}")
    return saved


def resume(checkpoint: Path, begun: dict[str, Any]) -> dict[str, Any] | None:
    """Load an earlier run's checkpoint, None if there is none; raise ScriptError if it began with other things."""
    if not checkpoint.exists():
        return None
    saved = load(checkpoint)
    check_same(saved, begun, checkpoint, *begun)
    return saved


def origin(initial: Path, begun: dict[str, Any]) -> dict[str, Any]:
    """Load a finished run's checkpoint, to begin another run with its weights.

    Raises ScriptError if it is not at its end, or of other classes or another size than this one.
    """
    saved = load(initial)
    check_same(saved, begun, initial, "classes", "size")
    if saved["epoch"] < saved["recipe"]["epochs"]:
        raise ScriptError(f"{initial} is at epoch {saved['epoch']} of {saved['recipe']['epochs']}; finish it first")
    return saved


def check_same(saved: dict[str, Any], begun: dict[str, Any], file: Path, *names: str) -> None:
    """Raise ScriptError if a checkpoint records something else than this run begins with."""
    for what in names:
        if saved.get(what) != begun[what]:
            raise ScriptError(
                f"{file} was made with another {what.replace('_', ' ')}: {saved.get(what)}, not {begun[what]}; "
                "name another file"
            )


def set_weights(model: nn.Module, saved: dict[str, Any], file: Path | None) -> None:
    """Give a network the weights of a run; raises ScriptError, with the file, if they are another architecture's."""
    try:
        model.load_state_dict(saved["model"])
    except RuntimeError as err:
        raise ScriptError(f"{file} holds another architecture's weights; name another file: {err}") from err


def random_state() -> list[Tensor]:
    """Return the state of every random generator of PyTorch's."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def set_random_state(state: list[Tensor]) -> None:
    """Set the generators to what `random_state` returned."""
    torch.set_rng_state(state[0])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state[1:])


class Run:
    """A training run: what it learns from, its network, and how far it is."""

    def __init__(self, recipe: Recipe, data: TrainingData, checkpoint: Path, initial: Path | None = None) -> None:
        """Load everything, from the checkpoint if there is one, or else the weights of `initial`, a finished run.

        Raises ScriptError if one of them does not fit this run, see `resume` and `origin`, or `TrainingData.load` does.
        """
        self._recipe, self._data, self._checkpoint = recipe, data, checkpoint
        self._begun: dict[str, Any] = {"recipe": recipe.to_json(), "initial": None, **data.begun}
        begun_with = None if initial is None else origin(initial, self._begun)
        if begun_with is not None:
            self._begun["initial"] = {what: begun_with.get(what) for what in ("recipe", "data_sha256", "initial")}
        torch.manual_seed(recipe.seed)
        model = network(recipe.to_json(), len(data.begun["classes"]))
        saved = resume(checkpoint, self._begun)
        if (weights := saved or begun_with) is not None:
            set_weights(model, weights, checkpoint if saved is not None else initial)
        data.load()
        if weights is None:
            # Every so many, because they are sorted by class.
            some = data.pixels[:: -(-data.pixels[:, 0].numel() // WHITENING_PIXELS)]
            whiten(model, data.normalize(some).cpu())
        self._model: nn.Sequential = model.to(data.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizers = optimizers(self._model, recipe)
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]
        self.epoch = 0
        if saved is not None:
            for optimizer, state in zip(self._optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            set_random_state(saved["random"])
            self.epoch = saved["epoch"]

    def finish(self) -> None:
        """Train to the end of the recipe; the checkpoint is saved after every epoch."""
        while self.epoch < self._recipe.epochs:
            print(self.next_epoch(), flush=True)

    def next_epoch(self) -> str:
        """Go through the images once and save the checkpoint; returns a sentence on it."""
        recipe, data, losses = self._recipe, self._data, []
        started = time.monotonic()
        steps = max(1, len(data.pixels) // recipe.batch_size)
        title = f"epoch {self.epoch + 1}/{recipe.epochs}"
        self._model.train()
        with tqdm(total=steps, desc=title, unit="batch", leave=False) as progress:
            for step, (batch, truth, taught) in enumerate(data.batches(self.epoch)):
                self._set_rates((self.epoch * steps + step) / (recipe.epochs * steps))
                self._model.zero_grad()
                losses.append(sum_gradients(self._model, batch, truth, recipe, taught) / len(batch))
                for optimizer in self._optimizers:
                    optimizer.step()
                progress.update()
                progress.set_postfix(loss=f"{sum(losses) / len(losses):.3f}")
        self.epoch += 1
        top1 = f", top-1 {accuracy(self._model, *data.judged):.4f}" if data.judged else ""
        self._save()
        seconds = time.monotonic() - started
        return f"epoch {self.epoch}: loss {sum(losses) / max(1, len(losses)):.4f}{top1}, {seconds:.0f} s"

    def _set_rates(self, progress: float) -> None:
        factor = decay(progress)
        for optimizer, rates in zip(self._optimizers, self._peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def _save(self) -> None:
        content = {
            **self._begun,
            "mean": self._data.normalize.mean.tolist(),
            "std": self._data.normalize.std.tolist(),
            "torch": str(torch.__version__),
            "device": self._data.device.type,
            "epoch": self.epoch,
            "model": self._model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "random": random_state(),
        }
        # Whole or not at all, in the place of the one before.
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        partial = self._checkpoint.with_name(f"{self._checkpoint.name}.partial")
        torch.save(content, partial)
        partial.replace(self._checkpoint)
