"""The number format that training computes in: bfloat16 where the processor has it, because it is slow elsewhere."""

from __future__ import annotations

import torch


def arithmetic(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and on a CPU with instructions for it, else float32."""
    if device.type == "cpu" and not torch.cpu.get_capabilities().get("avx512_bf16", False):
        return torch.float32
    return torch.bfloat16
