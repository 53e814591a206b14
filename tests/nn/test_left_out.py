"""Parts that a Config leaves out: norms, sums, the minus infinity of a mask. Each is compared with the same model written out.

The tests of every family's terms, records, batches and generation run on them too, but for batches under a fill: there a row depends on
what runs beside it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import test_generate
import tiny
from covering import FULL
from pellucid import config as c
from pellucid import ops
from pellucid.batch.mask import Mask, causal
from pellucid.batch.step import Step
from pellucid.counting.bill import pairs
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.nn.block import BareBlock, Block
from pellucid.nn.norm import NoNorm, PlainLayerNorm
from pellucid.ops import native
from pellucid.watching.watch import watch
from test_orders import ASKED
from tiny import GPT2, LLAMA, QWEN3, T5, far, ids, swapped


def bare(cfg: c.Config) -> c.Config:
    """Return a config without sums."""
    encoder = None if cfg.encoder is None else tuple(replace(one, order="bare") for one in cfg.encoder)
    return replace(cfg, layers=tuple(replace(one, order="bare") for one in cfg.layers), encoder=encoder)


def filled(cfg: c.Config, fill: float = 0.0) -> c.Config:
    """Return a config whose hidden keys have a score."""
    return replace(cfg, layers=tuple(replace(one, attn=replace(one.attn, fill=fill)) for one in cfg.layers))  # type: ignore[call-arg]


SHAPES = {
    "normless": replace(QWEN3, norm="none", embed_scale=0.1),  # numbers of the size that norms keep elsewhere
    "normless pair": replace(T5, norm="none"),
    "bare": bare(QWEN3),
    "bare pair": bare(T5),
    "filled": filled(LLAMA),
    "filled, with a bias": filled(T5, -1.5),
}
OF_FAMILIES = {"explained", "explained cells"}  # no files are known of these
OF_BATCHES = {"batch", "shuffled pages", "another's page", "greedy", "batch generation", "terms in a batch"}
OF_ROWS = {"terms", "sources", "meta", "sources on meta", "leads back"}
ASKING = [(s, q) for s in SHAPES for q in (OF_ROWS if SHAPES[s].encoder else ASKED.keys() - OF_FAMILIES)]
ASKING = sorted((s, q) for s, q in ASKING if not (s.startswith("filled") and q in OF_BATCHES))
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


@pytest.mark.parametrize("shape", ["normless", "bare"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.quick(2)
def test_one_request_goes_by_its_plan(shape: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode step without norms or sums is replayed as any other."""
    monkeypatch.setitem(tiny.FAMILIES, shape, SHAPES[shape])
    test_generate.test_one_request_goes_by_its_plan(shape, dtype)


# Written out


def by_hand(model: Any, tokens: Tensor, norms: bool, sums: bool) -> Tensor:
    """Run a decoder block by block, with its norms and sums or without."""
    step = Step.plain(tokens)
    x = model.embed(tokens)
    x = x if model.positions is None else x + model.positions(step.position_ids, model.offset)
    for block in model.layers:
        for part in ("attn", "ffn"):
            y = getattr(block, part)(getattr(block, f"{part}_norm")(x) if norms else x, step)
            x = x + y if sums else y
    return model.head(model.norm(x) if norms else x)  # type: ignore[no-any-return]


TOKENS = ids(2, 9)
GAPS: dict[str, Callable[[], float]] = {
    "norms": lambda: far((m := tiny.tiny(replace(GPT2, norm="none")))(TOKENS), by_hand(m, TOKENS, False, True)),
    "sums": lambda: far((m := tiny.tiny(bare(GPT2)))(TOKENS), by_hand(m, TOKENS, True, False)),
    "both": lambda: far((m := tiny.tiny(replace(bare(GPT2), norm="none")))(TOKENS), by_hand(m, TOKENS, False, False)),
    "neither": lambda: far((m := tiny.tiny(GPT2))(TOKENS), by_hand(m, TOKENS, True, True)),
}


def one_sum_left(self: BareBlock, x: Tensor, part: str, total: str, step: Step) -> Tensor:
    return Block.sum(self, x, part, total, step) if part == "attn" else bare_sum(self, x, part, total, step)


bare_sum = BareBlock.sum
MUTANTS: dict[str, tuple[str, tuple[Any, str, Any]]] = {
    "a norm runs": ("norms", (NoNorm, "forward", lambda self, x: PlainLayerNorm(x.shape[-1], 1e-5).double()(x))),
    "a sum is left": ("sums", (BareBlock, "sum", one_sum_left)),
    "all sums are left": ("both", (BareBlock, "sum", Block.sum)),
}


@pytest.mark.parametrize("left_out", GAPS)
def test_a_model_without_a_part_is_the_rest_of_it(left_out: str) -> None:
    assert GAPS[left_out]() < 1e-10


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_part_that_runs_is_seen(mutant: str) -> None:
    left_out, change = MUTANTS[mutant]
    with swapped(*change):
        assert GAPS[left_out]() > 1e-3


def operands(cfg: c.Config) -> list[tuple[str, ...]]:
    """Return what the first block's norm and sum are said to be made of."""
    with watch(model := tiny.tiny(cfg)) as seen:
        model(TOKENS)
    return [seen[f"layers.0.{name}"].inputs for name in ("attn_norm", "mid")]


def test_what_is_left_out_is_a_tensor_of_its_own() -> None:
    """Its record names what it is a copy of, and takes that one's name from no other record."""
    assert operands(replace(GPT2, norm="none")) == [("start",), ("start", "layers.0.attn")]
    assert operands(bare(GPT2)) == [("start",), ("layers.0.attn",)]
    with swapped(ops, "identity", lambda x: x):
        assert operands(replace(GPT2, norm="none"))[1] != ("start", "layers.0.attn")


# The score of hidden keys


def patterns(cfg: c.Config, inside: str = "beside") -> tuple[Tensor, Tensor, Any]:
    """Return the first layer's scores and pattern, and its record."""
    with watch(model := tiny.tiny(cfg), only="layers.0.attn.*", inside=inside) as seen:  # type: ignore[arg-type]
        model(TOKENS)
    return seen["layers.0.attn.scores"].value, seen["layers.0.attn.pattern"].value, seen["layers.0.attn.pattern"]


@pytest.mark.parametrize("fill", [0.0, -3.0])
def test_hidden_keys_have_the_score(fill: float) -> None:
    scores, pattern, record = patterns(filled(GPT2, fill))
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    assert far(pattern, scores.masked_fill(hidden, fill).softmax(-1)) < 1e-12
    assert float(pattern[:, :, 0, 1:].sum(-1).min()) > 0.01
    assert record.settings == {"mask": "s ≤ t", "fill": fill}


def test_a_fill_of_minus_infinity_is_seen() -> None:
    """The mutant: what a plain mask does."""
    plain = patterns(GPT2)[1]
    with swapped(Mask, "hide", lambda self, scores, allowed, present: torch.where(allowed, scores, float("-inf"))):
        pattern = patterns(filled(GPT2))[1]
    assert far(pattern, plain) < 1e-12 and far(patterns(filled(GPT2))[1], plain) > 1e-2


def test_padding_has_no_score() -> None:
    """A row with padding before it is the row alone: only keys that are there have the score."""
    model, row = tiny.tiny(filled(GPT2)), ids(1, 6)
    padded = torch.cat([ids(1, 3, seed=1), row], 1)
    mask = torch.tensor([[0] * 3 + [1] * 6])
    assert far(model(padded, Step.plain(padded, mask))[:, 3:], model(row)) < 1e-12
    with swapped(Mask, "present", lambda self, q_at, k_at, allowed: torch.ones_like(allowed)):
        assert far(model(padded, Step.plain(padded, mask))[:, 3:], model(row)) > 1e-3


def test_requests_stay_apart() -> None:
    """A fill shows a query its own request's keys alone, whose prompt runs at once, and no pages are shared."""
    model, prompts = tiny.tiny(filled(GPT2)), [ids(n, seed=n) for n in (5, 8)]
    alone = torch.cat([model(p[None]) for p in prompts], 1)
    assert far(model(torch.cat(prompts)[None], Step.packed([5, 8])), alone) < 1e-12
    engine = Engine.of(model, tokens=64)
    for p in (*prompts, prompts[1]):
        engine.submit(Request(tuple(p.tolist()), 1))
    first = {out.request: out.token.id for out in engine.outputs() if out.token is not None}
    assert first == {i: int(model(p[None])[0, -1].argmax()) for i, p in enumerate((*prompts, prompts[1]))}


def test_pairs_with_a_fill_are_all_counted() -> None:
    assert pairs(filled(GPT2).layers[0], 3, 4) == 3 * 7 and pairs(GPT2.layers[0], 3, 4) == 5 + 6 + 7


def test_no_kernel_takes_a_fill() -> None:
    """The reference alone runs it, whatever would fit otherwise."""
    q, at = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, dtype=torch.long)
    pools, table = (torch.zeros(4, 2, 8), torch.zeros(4, 2, 8)), torch.zeros(1, dtype=torch.long)
    if native.available():
        assert native.fits_attend(q, pools, table, at, causal)
    assert not native.fits_attend(q, pools, table, at, replace(causal, fill=0.0))
    with native.any_rows():
        assert far(tiny.tiny(filled(GPT2), torch.float32)(TOKENS).double(), tiny.tiny(filled(GPT2))(TOKENS)) < 1e-3
