"""Each distinct layer once: a model of 61 layers is counted by running one of each kind.

    DeepSeek-V3     3 dense + 58 with experts     ->  1 + 1 layers run, and stand for 3 and 58

Its weights are counted from two layers of each kind: what the second lacks, such as a shared table of distance biases, belongs to the
stack and not to the layer.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from pellucid.config import Config, Layer

PLACE = re.compile(r"(?P<stack>(?:encoder\.|decoder\.)?)layers\.(?P<number>\d+)(?P<rest>(?:\..*)?)")


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer. first: its first number in the full model.  built: its numbers in the reduced one.  count: how many there are."""

    stack: str  # "", "encoder." or "decoder."
    first: int
    built: tuple[int, ...]
    count: int
    numbers: tuple[int, ...]  # of all layers of this kind


@dataclass(frozen=True)
class Distinct:
    """A reduced config, and the layers that each of its layers stands for."""

    config: Config
    kinds: tuple[LayerKind, ...]

    def place(self, path: str) -> tuple[str, int] | None:
        """Return a path of the reduced model as (path in the full one, number of layers it stands for); None in a second copy."""
        match = PLACE.fullmatch(path)
        if match is None:
            return path, 1
        kind = self.built(match)
        if int(match["number"]) != kind.built[0]:
            return None
        return f"{kind.stack}layers.{kind.first}{match['rest']}", kind.count

    def again(self, path: str) -> str | None:
        """Return the same path in the second copy, None if there is none."""
        match = PLACE.fullmatch(path)
        if match is None:
            return None
        kind = self.built(match)
        return f"{kind.stack}layers.{kind.built[1]}{match['rest']}" if len(kind.built) > 1 else None

    def built(self, match: re.Match[str]) -> LayerKind:
        """Return the kind of a layer of the reduced model."""
        return next(k for k in self.kinds if k.stack == match["stack"] and int(match["number"]) in k.built)

    def kind(self, match: re.Match[str]) -> LayerKind:
        """Return the kind of a layer of the full model."""
        return next(k for k in self.kinds if k.stack == match["stack"] and int(match["number"]) in k.numbers)


def alike(layer: int) -> object:
    """Return the same for every layer."""
    return None


def distinct(cfg: Config, copies: int = 1, apart: Callable[[int], object] = alike) -> Distinct:
    """Return the reduced config of a model, with at most `copies` layers of each kind.

    apart: what tells layers of a decoder with the same spec from one another, by their numbers, beside whose weights they have
    (see Config.shares).
    """
    own = "" if cfg.encoder is None else "decoder."
    layers, kinds = reduced(own, cfg.layers, copies, lambda i: (apart(i), cfg.shares[i] if cfg.shares else None))
    shares = tuple(kind.built[0] for kind in kinds for _ in kind.built) if cfg.shares else ()
    if cfg.encoder is None:
        return Distinct(replace(cfg, layers=layers, shares=shares), tuple(kinds))
    encoder, more = reduced("encoder.", cfg.encoder, copies)
    return Distinct(replace(cfg, layers=layers, encoder=encoder), (*more, *kinds))


def reduced(
    stack: str, layers: tuple[Layer, ...], copies: int, apart: Callable[[int], object] = alike
) -> tuple[tuple[Layer, ...], list[LayerKind]]:
    """Return at most `copies` layers of each kind, in the order in which kinds first come, and the kinds."""
    numbers: dict[tuple[Layer, object], list[int]] = {}
    for i, layer in enumerate(layers):
        numbers.setdefault((layer, apart(i)), []).append(i)
    out: list[Layer] = []
    kinds = []
    for (layer, _), numbered in numbers.items():
        built = tuple(range(len(out), len(out) + min(copies, len(numbered))))
        kinds.append(LayerKind(stack, numbered[0], built, len(numbered), tuple(numbered)))
        out += [layer] * len(built)
    return tuple(out), kinds
