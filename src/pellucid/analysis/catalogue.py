"""Models of the catalogue by their numbers: what their configurations say, and what is counted from them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pellucid import catalog
from pellucid.api.count import described
from pellucid.config import Latent
from pellucid.counting import Bill, Setting, weighed
from pellucid.counting.meta_run import meta_model
from pellucid.counting.variants import cache_of, kinds

FAMOUS = (
    "bert-base", "gpt2-small", "gpt2-xl", "gpt3-175b", "llama-7b", "llama-2-7b", "llama-3-8b", "mixtral-8x7b", "qwen2.5-0.5b", "qwen3-4b",
    "deepseek-v3", "gpt-oss-120b", "kimi-k2",
)  # fmt: skip
"""One or two of each line of models that are often named."""


@dataclass(frozen=True)
class Biases:
    """Of several models: their number, and how many have a bias at the head, and in the products of queries, keys and values."""

    models: int
    head: int
    attention: int


def biases(start: str) -> Biases:
    """Count the models of the catalogue whose id begins with `start` that have a bias at the head, and in attention."""
    configs = [described(name)[1] for name in catalog.models() if name.startswith(start)]
    attention = [all(getattr(layer.attn, "bias", False) for layer in cfg.layers) for cfg in configs]
    return Biases(len(configs), sum(cfg.head_bias for cfg in configs), sum(attention))


@dataclass(frozen=True)
class Size:
    """A model of the catalogue. name, released, published: as its makers give them.  total, active: parameters that are counted."""

    name: str
    released: str
    published: str
    layers: int
    width: int
    heads: int
    total: int
    active: int


def parameters_of(name: str, fields: Mapping[str, Any] | None = None) -> Bill:
    """Count the parameters of a model of the catalogue. fields: replace those of its config.json."""
    family, cfg = described(name, fields or {})
    return weighed(cfg, name, family, Setting())


def sizes_of(names: Iterable[str]) -> Iterator[Size]:
    """Yield models of the catalogue with what is counted of them."""
    for name in names:
        entry, bill = catalog.models()[name], parameters_of(name)
        cfg, published = bill.config, str(entry["published"]["total"]).partition(" (")[0].partition(";")[0]
        total, active = int(bill["parameters.total"]), int(bill["parameters.active"])
        layers = len(cfg.layers) + len(cfg.encoder or ())
        yield Size(entry["name"], entry["released"], published, layers, cfg.width, cfg.heads, total, active)


def built(name: str) -> int:
    """Return the parameters of the module that a model's configuration builds, one by one, each tensor once."""
    return sum(p.numel() for p in meta_model(described(name)[1], torch.bfloat16).parameters())


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of a model's weights, and of its cache for every token. dtype: bfloat16 for both."""

    name: str
    kind: str
    weights: int
    token: int

    @property
    def even(self) -> int:
        """Return the tokens after which the cache is as large as the weights, if every layer keeps all of them."""
        return -(-self.weights // self.token)

    def cache(self, tokens: int) -> int:
        """Return the bytes of the cache of so long a context, if every layer keeps all of it."""
        return tokens * self.token


def stored(name: str) -> StoredBytes:
    """Return what a model of the catalogue stores."""
    bill = parameters_of(name)
    own = cache_of(bill.config, bill)
    return StoredBytes(catalog.models()[name]["name"], kinds(bill.config), int(bill["bytes.total"]), int(own["cache.bytes_per_token"]))


def uncompressed(name: str) -> int:
    """Return the bytes in bfloat16 that a model with latent attention would store of a token as the keys and values of all its heads."""
    layers = [one.attn for one in described(name)[1].layers if isinstance(one.attn, Latent)]
    return sum(attn.heads * (attn.key + attn.rope.width + attn.value) for attn in layers) * torch.bfloat16.itemsize
