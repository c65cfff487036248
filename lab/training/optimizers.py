"""The optimizers: Muon for the weights of convolutions, whose every step is made orthogonal, and SGD for the others.

Source of Muon: Jordan 2024, https://kellerjordan.github.io/posts/muon/; with the weights' norm held fixed, as his
CIFAR-10 speed runs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lab.training.recipe import Recipe

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3


def arithmetic(device: torch.device) -> torch.dtype:
    """Return the format that training computes in: bfloat16 where the processor has it, else float32."""
    if device.type == "cpu" and not torch.cpu.get_capabilities().get("avx512_bf16", False):
        return torch.float32
    return torch.bfloat16


class Muon(torch.optim.Optimizer):
    """Steps of equal size in every direction of a weight matrix; a convolution's rows are its output channels."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float) -> None:
        """Set the weights, each of at least two dimensions, the learning rate and the Nesterov momentum."""
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient once."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state: dict[str, Any] = self.state[weight]
                velocity = state.setdefault("velocity", torch.zeros_like(weight))
                velocity.mul_(group["momentum"]).add_(weight.grad)
                direction = weight.grad + group["momentum"] * velocity
                weight.mul_(len(weight) ** 0.5 / weight.norm())
                update = orthogonal(direction.reshape(len(weight), -1)).view(weight.shape)
                weight.add_(update, alpha=-group["lr"])


def orthogonal(matrix: Tensor) -> Tensor:
    """Give a matrix singular values near 1, with the same singular vectors, by Newton-Schulz iteration."""
    x = matrix.to(arithmetic(matrix.device))
    x = x / (x.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).to(matrix.dtype)


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
        Muon(convolutions, recipe.learning_rate, recipe.momentum),
        torch.optim.SGD(groups, momentum=recipe.sgd_momentum, nesterov=True),
    ]
