"""Each distinct layer once: a model of 61 layers is counted by running one of each kind.

    DeepSeek-V3     3 dense + 58 with experts     ->  1 + 1 layers run, and stand for 3 and 58

Its weights are those of two of each kind: what the second has not (a table of distance biases that all layers share) belongs to the
stack and not to the layer.
"""

import re
from dataclasses import dataclass, replace

from pellucid.config import Config, Layer

PLACE = re.compile(r"(?P<stack>(?:encoder\.|decoder\.)?)layers\.(?P<number>\d+)(?P<rest>(?:\..*)?)")


@dataclass(frozen=True)
class Kind:
    """A kind of layer. first: its first number in the whole model.  built: its numbers in the reduced one.  count: how many there are."""

    stack: str  # "", "encoder." or "decoder."
    first: int
    built: tuple[int, ...]
    count: int
    numbers: tuple[int, ...]  # of all layers of this kind


@dataclass(frozen=True)
class Distinct:
    """A reduced config, and what its layers stand for."""

    config: Config
    kinds: tuple[Kind, ...]

    def place(self, path: str) -> tuple[str, int] | None:
        """A path of the reduced model as (path in the whole one, how many layers it stands for); None for a second copy."""
        found = PLACE.fullmatch(path)
        if found is None:
            return path, 1
        kind = self.built(found)
        if int(found["number"]) != kind.built[0]:
            return None
        return f"{kind.stack}layers.{kind.first}{found['rest']}", kind.count

    def again(self, path: str) -> str | None:
        """The same place in the second copy, where there is one."""
        found = PLACE.fullmatch(path)
        if found is None:
            return None
        kind = self.built(found)
        return f"{kind.stack}layers.{kind.built[1]}{found['rest']}" if len(kind.built) > 1 else None

    def built(self, found: re.Match[str]) -> Kind:
        """The kind of a layer of the reduced model."""
        return next(k for k in self.kinds if k.stack == found["stack"] and int(found["number"]) in k.built)

    def kind(self, found: re.Match[str]) -> Kind:
        """The kind of a layer of the whole model."""
        return next(k for k in self.kinds if k.stack == found["stack"] and int(found["number"]) in k.numbers)


def distinct(cfg: Config, copies: int = 1) -> Distinct:
    """The reduced config of a model, with at most so many layers of each kind."""
    own = "" if cfg.encoder is None else "decoder."
    layers, kinds = reduced(own, cfg.layers, copies)
    if cfg.encoder is None:
        return Distinct(replace(cfg, layers=layers), tuple(kinds))
    encoder, more = reduced("encoder.", cfg.encoder, copies)
    return Distinct(replace(cfg, layers=layers, encoder=encoder), (*more, *kinds))


def reduced(stack: str, layers: tuple[Layer, ...], copies: int) -> tuple[tuple[Layer, ...], list[Kind]]:
    """At most so many of each kind, in the order in which kinds first come."""
    numbers: dict[Layer, list[int]] = {}
    for i, layer in enumerate(layers):
        numbers.setdefault(layer, []).append(i)
    out: list[Layer] = []
    kinds = []
    for layer, found in numbers.items():
        built = tuple(range(len(out), len(out) + min(copies, len(found))))
        kinds.append(Kind(stack, found[0], built, len(found), tuple(found)))
        out += [layer] * len(built)
    return tuple(out), kinds
