"""The settings of sampling: their bounds, and the values at which they are off."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import UseError

# The bounds of each number. OpenAI's (2, 1, -2 to 2, -100 to 100) are narrower.
LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1000.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repetition": (0.01, 100.0), "presence": (-100.0, 100.0),
    "frequency": (-100.0, 100.0), "bias": (-1000.0, 1000.0),
}  # fmt: skip
WHOLE: dict[str, tuple[int, int]] = {"top_k": (0, 2**31 - 1), "seed": (-(2**63), 2**64 - 1)}
# The value at which a setting is off, so that its stage does not run.
OFF: dict[str, Any] = {
    "bias": {}, "repetition": 1.0, "presence": 0.0, "frequency": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """The settings of the choice of a token from logits; by default the likeliest token. The stages are in ops/sampling/stages.py.

    temperature: 0 takes the likeliest token.  top_k: keep this many of the likeliest, 0 all.
    top_p: keep the fewest likeliest tokens whose probabilities sum to it.  min_p: keep tokens of at least this share of the largest.
    repetition: divides the positive logits of tokens in the prompt or the output and multiplies the others; 1 is off.
    presence: subtracted from the logits of tokens in the output.  frequency: the same, times the token's count.
    bias: added to logits, by token id.  seed: of the draws; a negative one counts from 2^64 down.
    Raises UseError for a setting that is not such a number.
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
        """Make settings from a mapping. An unknown name is a UseError that offers the nearest names."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in settings if name not in known]:
            near = difflib.get_close_matches(unknown[0], known, 3, 0.3) or known
            raise UseError("sampling.unknown", name=unknown[0], near=", ".join(near))
        return cls(**settings)

    @property
    def greedy(self) -> bool:
        """True if temperature is 0: the likeliest token is taken, without a draw."""
        return self.temperature == 0

    @cached_property
    def plain(self) -> bool:
        """True if the likeliest token of the unchanged logits is taken."""
        return self.greedy and not self.changes

    @cached_property
    def changes(self) -> bool:
        """True if the logits are changed before the temperature."""
        return any(getattr(self, name) != OFF[name] for name in ("bias", "repetition", "presence", "frequency"))

    @cached_property
    def undrawn(self) -> "Sampling":
        """Return these settings at temperature 0: the stages before the temperature alone."""
        return replace(self, temperature=0.0)

    @cached_property
    def biases(self) -> tuple[Tensor, Tensor]:
        """Return the ids that have a bias, and the biases in float64."""
        return torch.tensor(list(self.bias)), torch.tensor(list(self.bias.values()), dtype=torch.float64)

    def check(self, vocab: int) -> None:
        """Raise UseError for a bias on an id outside a vocabulary of `vocab` tokens."""
        if wrong := [id for id in self.bias if not 0 <= id < vocab]:
            raise UseError("sampling.id", id=wrong[0], last=vocab - 1)


def check_number(name: str, value: object, kind: str) -> None:
    """Raise UseError unless `value` is a number within LIMITS[kind]. A bool is no number."""
    least, most = LIMITS[kind]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UseError("sampling.number", field=name, found=repr(value), least=least, most=most)
