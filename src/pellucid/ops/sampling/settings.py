"""The settings of sampling: what each may be, and where it does nothing."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import UseError

# What is allowed. OpenAI's own bounds (2, 1, -2 to 2, -100 to 100) lie within.
LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1000.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repetition": (0.01, 100.0), "presence": (-100.0, 100.0),
    "frequency": (-100.0, 100.0), "bias": (-1000.0, 1000.0),
}  # fmt: skip
WHOLE: dict[str, tuple[int, int]] = {"top_k": (0, 2**31 - 1), "seed": (-(2**63), 2**64 - 1)}
# Where a setting does nothing, so that its stage does not run.
OFF: dict[str, Any] = {
    "bias": {}, "repetition": 1.0, "presence": 0.0, "frequency": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from logits; by default the likeliest. The stages and their order: ops/sampling/stages.py.

    temperature: 0 takes the likeliest.  top_k: how many of the likeliest, 0 all.  top_p: the likeliest that come to this share together.
    min_p: those of at least this share of the likeliest one's.  repetition: divides logits of tokens in prompt and output, 1 none.
    presence, frequency: taken from logits of tokens in the output, once, or for each time.  bias: added to logits, by token id.
    seed: of the draws; a negative one counts from 2^64 down. A setting that is no such number is a UseError.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in LIMITS.keys() - {"bias"}:
            check_number(name, getattr(self, name), name)
        for name, (least, most) in WHOLE.items():
            value = getattr(self, name)
            if not (type(value) is int and least <= value <= most) and (name, value) != ("seed", None):
                raise UseError("sampling.whole", field=name, found=repr(value), least=least, most=most)
        if not isinstance(self.bias, Mapping) or any(type(id) is not int for id in self.bias):
            raise UseError("sampling.bias", found=repr(self.bias))
        for id, value in self.bias.items():
            check_number(f"bias[{id}]", value, "bias")
        object.__setattr__(self, "bias", dict(self.bias))  # the caller's own may change

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Sampling":
        """Settings by name; one that there is not is an error that offers the nearest."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in settings if name not in known]:
            near = difflib.get_close_matches(unknown[0], known, 3, 0.3) or known
            raise UseError("sampling.unknown", name=unknown[0], near=", ".join(near))
        return cls(**settings)

    @property
    def greedy(self) -> bool:
        """Whether it takes the likeliest token and draws none."""
        return self.temperature == 0

    @cached_property
    def plain(self) -> bool:
        """Whether it takes the likeliest token of the logits as they are."""
        return self.greedy and all(getattr(self, name) == OFF[name] for name in ("bias", "repetition", "presence", "frequency"))

    @cached_property
    def biases(self) -> tuple[Tensor, Tensor]:
        """The ids that have a bias, and the biases: float64."""
        return torch.tensor(list(self.bias)), torch.tensor(list(self.bias.values()), dtype=torch.float64)

    def check(self, vocab: int) -> None:
        """Refuse a bias on a token that the vocabulary does not hold."""
        if wrong := [id for id in self.bias if not 0 <= id < vocab]:
            raise UseError("sampling.id", id=wrong[0], last=vocab - 1)


def check_number(name: str, value: object, kind: str) -> None:
    """A finite number within its limits; True is none."""
    least, most = LIMITS[kind]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UseError("sampling.number", field=name, found=repr(value), least=least, most=most)
