"""A training run on disk: written after every epoch, resumed from, begun with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scripts.errors import ScriptError


def load(checkpoint: Path) -> dict[str, Any]:
    """What a run saved, on the CPU.

    Raises:
        ScriptError: the file is no checkpoint.
    """
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
    """What an earlier run saved; None if there is none.

    Args:
        checkpoint: where it would be.
        begun: what this run begins with, which must be what that one began with.

    Raises:
        ScriptError: that run began with something else.
    """
    if not checkpoint.exists():
        return None
    saved = load(checkpoint)
    for what, value in begun.items():
        if saved.get(what) != value:
            raise ScriptError(
                f"{checkpoint} was made with another {what.replace('_', ' ')}: {saved.get(what)}, not {value}; "
                "name another file by --checkpoint"
            )
    return saved


def origin(initial: Path, begun: dict[str, Any]) -> dict[str, Any]:
    """What a finished run saved, to begin another with its weights.

    Raises:
        ScriptError: it is not at its end, or of other classes or another size than this one.
    """
    saved = load(initial)
    for what in ("classes", "size"):
        if saved[what] != begun[what]:
            raise ScriptError(f"{initial} was made with another {what}: {saved[what]}, not {begun[what]}")
    if saved["epoch"] < saved["recipe"]["epochs"]:
        raise ScriptError(f"{initial} is at epoch {saved['epoch']} of {saved['recipe']['epochs']}; finish it first")
    return saved


def set_weights(model: nn.Module, saved: dict[str, Any], file: Path | None) -> None:
    """Give a network the weights of a run; raises ScriptError, with the file, if they are another architecture's."""
    try:
        model.load_state_dict(saved["model"])
    except RuntimeError as err:
        raise ScriptError(f"{file} holds another architecture's weights; name another file: {err}") from err


def save(checkpoint: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint in the place of the one before, whole or not at all."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = checkpoint.with_name(f"{checkpoint.name}.partial")
    torch.save(content, partial)
    partial.replace(checkpoint)


def random_state() -> list[Tensor]:
    """The state of every random generator of PyTorch's."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def set_random_state(state: list[Tensor]) -> None:
    """Set the generators to what `random_state` returned."""
    torch.set_rng_state(state[0])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state[1:])
