"""Numbers and documents of a page that runs its model, beside Python's."""

import base64
from typing import Any

import torch

NEAR = 2e-5  # of a tensor's largest number


def values(text: str, shape: list[int]) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32).reshape(shape)


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, by the largest number."""
    return float((ours.double() - theirs.double()).abs().max() / theirs.abs().max().double().clamp(min=1e-30))


def unlike(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return where two documents differ; of real numbers by more than NEAR of their size or of 1."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [p for k in theirs.keys() | ours.keys() for p in unlike(ours.get(k, "-"), theirs.get(k, "-"), f"{path}.{k}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [p for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) for p in unlike(a, b, f"{path}[{i}]")]
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return [] if abs(ours - theirs) <= NEAR * max(1.0, abs(theirs)) else [f"{path}: {ours} {theirs}"]
    return [] if ours == theirs else [f"{path}: {ours} {theirs}"]
