"""Models that tests make variants of, and the weights that a variant must share with one."""

from functools import cache

import torch
from torch import Tensor

import judge as judges
from pellucid.api.model import Model, load, specimens

PROMPT = "The capital of France is"
NAMES = [name.removeprefix("pellucid/") for name in specimens()] + judges.FAMILIES


@cache
def plain(name: str = "capitals") -> Model:
    """Return a specimen in float32, or the tiny model of a family; tests share it and change nothing."""
    return load(f"pellucid/{name}", dtype="float32") if f"pellucid/{name}" in specimens() else load(judges.judge(name).folder)


def inputs(name: str, model: Model) -> tuple[Tensor, ...]:
    """Return arguments for a call of the model."""
    if f"pellucid/{name}" in specimens():
        row = torch.tensor([model.tokenizer.encode(PROMPT)])
        return (row, row[:, :3]) if model.config.encoder else (row,)
    return tuple(judges.prompts(name))


def copies(model: Model, other: Model) -> list[str]:
    """Return the weights of a variant that are not the other's own objects, of those that it does not say are its own."""
    theirs = dict(other.module.named_parameters(remove_duplicate=False)) | dict(other.module.named_buffers(remove_duplicate=False))
    theirs |= {"head.weight": other.module.embed.weight} if model.config.tied else {}
    ours = dict(model.module.named_parameters(remove_duplicate=False)) | dict(model.module.named_buffers(remove_duplicate=False))
    first = {id(w): name for name, w in reversed(ours.items())}  # a table that layers share is that of the first of them
    return [name for name, w in ours.items() if w is not theirs.get(first[id(w)]) and name not in model.own]
