"""Models that tests make variants of, the weights that a variant must share with one, and 194 questions about capitals."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import judge as judges
from pellucid.api.model import Model, load, specimens
from pellucid.training.corpus import read

CAPITALS = Path(__file__).parents[2] / "recipes" / "capitals"
PROMPT = "The capital of France is"
NAMES = [name.removeprefix("pellucid/") for name in specimens()] + judges.FAMILIES


@cache
def plain(name: str = "capitals") -> Model:
    """Return a specimen in float32, or the tiny model of a family; tests share it and change nothing."""
    return load(f"pellucid/{name}", dtype="float32") if name.startswith("capitals") else load(judges.judge(name).folder)


def inputs(name: str, model: Model) -> tuple[Tensor, ...]:
    """Return arguments for a call of the model."""
    if name.startswith("capitals"):
        row = torch.tensor([model.tokenizer.encode(PROMPT)])
        return (row, row[:, :3]) if model.config.encoder else (row,)
    return tuple(judges.prompts(name))


def copies(model: Model, other: Model) -> list[str]:
    """Return the weights of a variant that are not the other's own objects, of those that it does not say are its own."""
    theirs = dict(other.module.named_parameters(remove_duplicate=False)) | dict(other.module.named_buffers(remove_duplicate=False))
    theirs |= {"head.weight": other.module.embed.weight} if model.config.tied else {}
    ours = dict(model.module.named_parameters(remove_duplicate=False)) | dict(model.module.named_buffers(remove_duplicate=False))
    return [name for name, w in ours.items() if w is not theirs.get(name) and name not in model.own]


@cache
def quiz() -> tuple[Tensor, Tensor, Tensor]:
    """Return 194 prompts padded on the left, their padding, and the first token of each capital."""
    tokenizer, book = plain().tokenizer, read(CAPITALS)
    rows = [tokenizer.encode(f"The capital of {one.named['name']['en']} is") for one in book.countries.values()]
    right = [tokenizer.encode(f" {one.named['capital']['en']}")[0] for one in book.countries.values()]
    longest = max(map(len, rows))
    padded = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    return padded, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]), torch.tensor(right)


def answers(model: Model) -> int:
    """Return how many of the capitals a model names."""
    prompts, padding, right = quiz()
    return int((model(prompts, padding=padding)[:, -1].argmax(-1) == right).sum())
