"""Matrices that a Config makes products of two thin ones: what runs, is recorded and is counted.

The tests of every family's terms, records, batches and generation run on them too.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import test_generate
import tiny
from covering import FULL
from pellucid import config as c
from pellucid.counting import Setting, counted
from pellucid.nn.low_rank import READ, LowRank, thinnable
from pellucid.nn.transformer import build
from pellucid.watching.meta import META
from pellucid.watching.tap import tap
from pellucid.watching.watch import watch
from test_orders import ASKED
from tiny import DEEPSEEK_V3, QWEN2_MOE, QWEN3, T5, far, ids, swapped


def thin(cfg: c.Config, *ranks: tuple[str, int]) -> c.Config:
    """Return a config with these ranks in every layer."""
    return replace(cfg, layers=tuple(replace(one, ranks=ranks) for one in cfg.layers))


SHAPES = {
    "thin": thin(QWEN3, ("ffn.up", 5), ("ffn.down", 7), ("attn.q", 9), ("attn.k", 6), ("attn.o", 8)),
    "thin, shared expert": thin(
        replace(QWEN2_MOE, layers=QWEN2_MOE.layers[:1] * 2), ("ffn.shared.up", 4), ("attn.v", 6), ("ffn.shared_gate", 1)
    ),
    "thin latent": thin(DEEPSEEK_V3, ("attn.q_a", 8), ("attn.q_b", 10), ("attn.kv_a", 12), ("attn.o", 9)),
    "thin pair": thin(T5, ("cross.k", 5), ("cross.q", 6), ("ffn.up", 3)),
}
OF_FAMILIES = {"explained", "explained cells"}  # no files are known of these
OF_ROWS = {"terms", "a forgotten summand", "sources", "operands", "meta", "sources on meta", "leads back"}
ASKING = sorted((s, q) for s in SHAPES for q in (OF_ROWS if SHAPES[s].encoder else ASKED.keys() - OF_FAMILIES))
QUICK = [(s, q) for s, q in ASKING if (list(SHAPES).index(s) + sorted(ASKED).index(q)) % 2 == 0]  # two shapes ask by turns


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("shape", "question"), ASKING if FULL else QUICK)
@pytest.mark.quick(17)
def test_what_is_asked_of_every_family(shape: str, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    ASKED[question](shape)


def test_one_request_goes_by_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.FAMILIES, "thin", SHAPES["thin"])
    test_generate.test_one_request_goes_by_its_plan("thin", torch.float64)


def gap() -> float:
    """Return how far a part with two thin matrices is from the product written out, and its numbers between from theirs."""
    with watch(model := tiny.tiny(thin(tiny.GPT2, ("ffn.up", 5)))) as seen:
        model(ids(2, 9))
    up = model.layers[1].ffn.up
    x, between, y = (seen[f"layers.1.{name}"] for name in ("ffn_norm", "ffn.up.narrow", "ffn.up"))
    assert between.dims == "B T L" and between.value.shape == (2, 9, 5) and y.inputs == (between.path,)
    low = x.value @ up.narrow.weight.T
    return max(far(between.value, low), far(y.value, low @ up.widen.weight.T + up.widen.bias))


def test_a_part_is_the_product_of_its_two_matrices() -> None:
    assert gap() < 1e-10
    with swapped(LowRank, "forward", lambda self, x: self.widen(tap(self.narrow(x).roll(1, -1), "narrow: B T L"))):
        assert gap() > 1e-3


def test_it_is_counted_as_it_ran() -> None:
    """Parameters L·(in + out), and FLOPs of both products, in place of those of the full matrix."""
    full, low = (counted(cfg, "x", "llama", Setting(context=16)) for cfg in (QWEN3, thin(QWEN3, ("ffn.up", 5))))
    d, f = tiny.D, 48
    assert low["parameters.layers.0.ffn.up.narrow.weight"].formula == "L·D = 5·32 = 160"
    assert low["parameters.layers.0.ffn.up.widen.weight"].formula == "F·L = 48·5 = 240"
    assert full["parameters.total"].value - low["parameters.total"].value == 2 * (d * f - 5 * (d + f))
    assert low["flops.prefill.layers.0.ffn.up.narrow"].value == 2 * 16 * 5 * d
    assert full["flops.prefill"].value - low["flops.prefill"].value == 2 * 2 * 16 * (d * f - 5 * (d + f))


@pytest.mark.parametrize("cfg", [*tiny.FAMILIES.values(), *SHAPES.values()])
@pytest.mark.quick(17)
def test_every_matrix_that_may_be_split_runs_split(cfg: c.Config) -> None:
    """Those that `thinnable` lists, each alone; a matrix that is read and never called is not among them."""
    with META:
        full = build(cfg)
    paths = thinnable(full)
    assert paths and not {p.rpartition(".")[2] for p in paths} & READ
    for path in paths:
        stack, _, rest = path.partition("layers.")
        number, _, name = rest.partition(".")
        layers = list(cfg.encoder if stack == "encoder." and cfg.encoder else cfg.layers)
        layers[int(number)] = replace(layers[int(number)], ranks=(*layers[int(number)].ranks, (name, 1)))
        changed = replace(cfg, encoder=tuple(layers)) if stack == "encoder." else replace(cfg, layers=tuple(layers))
        with META:
            model = build(changed)
        given = (ids(1, 4).to(META), ids(1, 3).to(META)) if cfg.encoder else (ids(1, 4).to(META),)
        with watch(model, only=f"{path}.narrow") as seen:
            model(*given)
        assert len(seen) == 1, path
