"""Bytes of a cache by hand: layers, keys and values, groups, width, two bytes."""

from dataclasses import replace

import pellucid
from pellucid.analysis.cache_cost import cache_cost, groupings, shared_by_all
from pellucid.config import Config


def with_groups(cfg: Config, n: int) -> Config:
    return replace(cfg, layers=tuple(replace(one, attn=one.attn.as_heads(n)) for one in cfg.layers))


def test_cache_by_hand() -> None:
    cfg = pellucid.load("pellucid/capitals", device="meta").config
    assert groupings(cfg) == [4, 2, 1] and groupings(with_groups(cfg, 2)) == [2, 1]
    for n, kind in ((4, "MHA"), (2, "GQA"), (1, "MQA")):
        cost = cache_cost(with_groups(cfg, n), "gpt2", "capitals")
        assert (cost.kind, cost.token, cost.read, cost.context) == (kind, 4 * 2 * n * 32 * 2, 4 * 2 * n * 32 * 2 * 64, 64)
    assert cache_cost(with_groups(cfg, 1), "gpt2", "capitals").flops < cache_cost(cfg, "gpt2", "capitals").flops


def test_one_head_for_all() -> None:
    own, one, ratio = shared_by_all("gpt3-175b")
    assert own.token == 96 * 2 * 96 * 128 * 2 and one.token == 96 * 2 * 128 * 2 and ratio == 96
