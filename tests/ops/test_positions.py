"""Positions of tokens: rotations and their scalings against their papers, learned positions, slopes, and none at all."""

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import config as c
from pellucid import ops
from pellucid.api.model import Model
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.mask import alibi, bidirectional, causal
from pellucid.batch.step import Step
from pellucid.errors import UseError
from pellucid.families import family
from pellucid.nn.attention import Attention
from pellucid.nn.transformer import Decoder
from pellucid.watching.watch import watch
from tiny import GPT2, LLAMA, QWEN3, V, far, ids, law, serve, tiny, without

rotate = importlib.import_module("pellucid.ops.rotate")  # the package names a function so
WIDTH = 16
SCALINGS: dict[str, c.LinearScaling | c.Llama3 | c.Yarn | None] = {
    "plain": None,
    "linear": c.LinearScaling(4.0),
    "llama3": c.Llama3(8.0, 1.0, 4.0, 512),
    "yarn": c.Yarn(16.0, 256, amount=1.2),
    "yarn, not truncated": c.Yarn(32.0, 256, truncate=False),
}
ROPES = [c.Rope(WIDTH, 500.0, interleaved, s) for interleaved in (False, True) for s in SCALINGS.values()]
turn, frequencies, angles = ops.rotate, rotate.frequencies, ops.angles


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotate_at(x: Tensor, at: Tensor, rope: c.Rope) -> Tensor:
    """Return x [B T H K] rotated at positions [B T]."""
    return ops.rotate(x, ops.angles(at, rope, x.dtype), rope.interleaved)


def by_hand(pair: int, rope: c.Rope) -> float:
    """Return a pair's radians per token, in Python's floats, as the papers write it."""
    w = rope.theta ** (-2 * pair / rope.width)
    match rope.scaling:
        case None:
            return w
        case c.LinearScaling(s):
            return w / s
        case c.Llama3(s, low, high, original):
            wavelength = 2 * math.pi / w
            if wavelength < original / high:
                return w
            if wavelength > original / low:
                return w / s
            smooth = (original / wavelength - low) / (high - low)
            return (1 - smooth) * w / s + smooth * w
        case c.Yarn(s, original, fast, slow, _, truncate):
            at = [rope.width * math.log(original / (n * 2 * math.pi)) / (2 * math.log(rope.theta)) for n in (fast, slow)]
            low, high = (math.floor(at[0]), math.ceil(at[1])) if truncate else at
            low, high = max(low, 0), min(high, rope.width - 1)
            ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
            return w / s * ramp + w * (1 - ramp)


def from_one(rope: c.Rope, dtype: torch.dtype, device: Any = "cpu", totals: object = None) -> Tensor:
    """Count pairs from 1, as a mutant."""
    return frequencies(rope, dtype, device) * rope.theta ** (-2 / rope.width)


@law(
    1e-12,
    from_one=(rotate, "frequencies", from_one),
    whole_width=(rotate, "frequencies", lambda r, d, v="cpu", t=None: frequencies(r, d, v) ** 2),
)
def test_14_frequencies() -> float:
    """Every scaling equals its formula, relative to the frequency."""
    gaps = [0.0]
    for rope in ROPES:
        at = torch.tensor([[0, 1, 700]])
        cos, sin = ops.angles(at, rope, torch.float64)
        amount = rope.scaling.amount if isinstance(rope.scaling, c.Yarn) else 1.0
        for i in range(WIDTH // 2):
            angle = torch.tensor([p * by_hand(i, rope) for p in (0, 1, 700)], dtype=torch.float64)
            gaps += [far(cos[0, :, 0, i], angle.cos() * amount), far(sin[0, :, 0, i], angle.sin() * amount)]
    return max(gaps)


def test_14_scalings_differ() -> None:
    """Scaled variants change some pairs and keep others, so that every branch of the formulas is met."""
    for name, s in SCALINGS.items():
        ratio = frequencies(c.Rope(WIDTH, 500.0, scaling=s), torch.float64) / frequencies(c.Rope(WIDTH, 500.0), torch.float64)
        if name not in ("plain", "linear"):
            assert ratio[0] == 1.0 and ratio[-1] < 0.2 and ((ratio < 0.99) & (ratio > 1.01 * ratio[-1])).any()


def test_14_wavelengths() -> None:
    """For width 128 and theta 10000 a full rotation takes 6.28 to 54,410 tokens."""
    w = 2 * math.pi / frequencies(c.Rope(128), torch.float64)
    assert abs(w[0] - 2 * math.pi) < 1e-12 and abs(w[-1] - 54_410) < 1 and len(w) == 64


@pytest.mark.parametrize("scaling", [c.LinearScaling(1.0), c.Llama3(1.0, 1.0, 4.0, 512), c.Yarn(1.0, 256)])
def test_14_factor_one_is_plain(scaling: Any) -> None:
    assert far(frequencies(c.Rope(WIDTH, 500.0, scaling=scaling), torch.float64), frequencies(c.Rope(WIDTH, 500.0), torch.float64)) < 1e-15


def one_sided(x: Tensor, pair: tuple[Tensor, Tensor], interleaved: bool) -> Tensor:
    """Reflect the second channel of each pair instead of rotating it, as a mutant."""
    return turn(x, (pair[0], pair[1].abs()), interleaved)


def late(at: Tensor, rope: c.Rope, dtype: torch.dtype, totals: object = None) -> tuple[Tensor, Tensor]:
    """Use angles of squared positions, for which a difference is not all that counts, as a mutant."""
    return angles(at * at, rope, dtype)


@law(1e-8, one_sided=(ops, "rotate", one_sided), not_linear=(ops, "angles", late))
def test_14_only_distance_counts() -> float:
    """q·k at m and n equals that at m + s and n + s, for s up to 100,000."""
    q, k, at, gaps = rows(1, 9, 2, WIDTH), rows(1, 9, 2, WIDTH, seed=1), torch.arange(9)[None], [0.0]
    for rope in ROPES:
        score = lambda s: torch.einsum("bthk,bshk->bhts", rotate_at(q, at + s, rope), rotate_at(k, at + s, rope))  # noqa: E731
        gaps += [far(score(0), score(s)) for s in (1, 17, 100_000)]
    return max(gaps)


@law(1e-12, stretched=(ops, "angles", lambda *a: tuple(x * 1.01 for x in angles(*a))))
def test_14_norms_are_kept() -> float:
    """A rotation keeps the length of every row; only YaRN's amount scales it."""
    x, at, gaps = rows(2, 9, 2, WIDTH), torch.arange(9).expand(2, 9) * 31, [0.0]
    for rope in ROPES:
        amount = rope.scaling.amount if isinstance(rope.scaling, c.Yarn) else 1.0
        gaps.append(far(rotate_at(x, at, rope).norm(dim=-1), x.norm(dim=-1) * amount))
    return max(gaps)


@law(1e-12, same_layout=(ops, "rotate", lambda x, pair, interleaved: turn(x, pair, False)))
def test_14_layouts() -> float:
    """Pairs side by side and half a width apart give the same rotation with permuted channels."""
    x, at = rows(1, 9, 2, WIDTH), torch.arange(9)[None]
    order = torch.arange(WIDTH).view(-1, 2).T.flatten()  # 0 2 4 ... 1 3 5 ...
    return far(rotate_at(x, at, c.Rope(WIDTH, interleaved=True))[..., order], rotate_at(x[..., order], at, c.Rope(WIDTH)))


@law(0.0, whole=(ops, "rotate", lambda x, pair, i: torch.cat([turn(h, pair, i) for h in x.split(WIDTH, -1)], -1)))
def test_14_partial() -> float:
    """Channels beyond the rotary width keep every bit; the first rotate as a head of that width."""
    x, at = rows(1, 9, 2, 2 * WIDTH), torch.arange(9)[None]
    wrong = 0.0
    for interleaved in (False, True):
        rope = c.Rope(WIDTH, interleaved=interleaved)
        out = rotate_at(x, at, rope)
        wrong += float(not torch.equal(out[..., WIDTH:], x[..., WIDTH:]))
        wrong += float(not torch.equal(out[..., :WIDTH], rotate_at(x[..., :WIDTH], at, rope)))
    return wrong


@law(1e-9, once=(ops, "angles", late))
def test_14_models_do_not_know_where_they_start() -> float:
    """Adding 1000 to all positions gives the same logits."""

    def moved(model: Decoder) -> float:
        tokens = ids(1, 9)
        return far(model(tokens), model(tokens, Step(torch.arange(1000, 1009)[None], padded=True)))

    with torch.no_grad():
        return max(moved(tiny(f)) for f in ("llama", "qwen3", "deepseek_v3"))


def hand_slopes(heads: int) -> Tensor:
    """Return 2^(-8/n), 2^(-16/n), ... of arXiv 2108.12409."""
    return torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=torch.float64)


mask_module = importlib.import_module("pellucid.batch.mask")


def attended(tokens: Tensor, at: Tensor | None = None) -> dict[str, Tensor]:
    """Return the records of a model of one layer with ALiBi's bias."""
    model = tiny(replace(LLAMA, layers=(c.Layer(c.Attention(4, 2, 8), c.Mlp(48)),)))
    slanted = replace(causal, bias=mask_module.alibi(hand_slopes(4)))
    with torch.no_grad(), watch(model) as seen:
        model(tokens, Step(torch.arange(tokens.shape[1])[None] if at is None else at, mask=slanted))
    return {s.path: s.value for s in seen}


@law(
    rising=(mask_module, "alibi", lambda slopes: alibi(-slopes)),
    one_slope=(mask_module, "alibi", lambda slopes: alibi(slopes[:1].expand(4))),
)
def test_15_alibi() -> float:
    """Scores are q·k / √K minus slope times distance, and the kernel agrees with the reference."""
    seen = attended(ids(1, 9))
    q, k = seen["layers.0.attn.q"][0], seen["layers.0.attn.k"][0].repeat_interleave(2, 1)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    expected = torch.einsum("thk,shk->hts", q, k) / math.sqrt(8) - hand_slopes(4)[:, None, None] * distance.abs()
    later = attended(ids(1, 9), torch.arange(9)[None] + 50)
    return max(far(seen["layers.0.attn.scores"][0], expected), far(seen["logits"], later["logits"]))


@law(off_by_one=(Step, "position_ids", property(lambda self: self.positions + 1)))
def test_15_learned_positions() -> float:
    """start = embed + the table's row of each position; a cached step takes its own row."""
    model, tokens, gaps = tiny("gpt2"), ids(1, 9), []
    pages = PagedCache(8, 4)
    for step in (Step.plain(tokens), Step.paged(pages, {0: 9})):
        with torch.no_grad(), watch(model) as seen:
            model(tokens, step)
        gaps.append(far(seen["start"].value, (model.embed.weight[tokens] + model.positions.weight[:9]).detach()))
    return max(gaps)


@pytest.mark.parametrize("wrong", [V, V + 1000, -1])
def test_15_ids_out_of_range(wrong: int) -> None:
    """An id beyond the table, or a text beyond the learned positions, is refused by name."""
    model = Model("tiny", tiny("gpt2"), family("gpt2"), {}, None)
    model(torch.tensor([[0, V - 1]]))
    with pytest.raises(UseError, match=str(wrong)):
        model(torch.tensor([[3, wrong, 5]]))
    assert model(ids(1, GPT2.positions)).shape == (1, 64, V)
    with pytest.raises(UseError, match="65"):
        model(ids(1, 65))
    with pytest.raises(UseError):
        model.generate(ids(1, 60), max_new_tokens=6)
    with pytest.raises(UseError):
        model(torch.zeros(1, 3))


@law(positioned=(Attention, "mask", lambda self, step: replace(bidirectional, bias=alibi(hand_slopes(4)))))
def test_15_no_positions() -> float:
    """A bidirectional model without positions ignores the order of its tokens, A(x[p]) = A(x)[p]; under a causal mask it does not."""
    model = tiny(replace(LLAMA, layers=(c.Layer(c.Attention(4, 2, 8, causal=False), c.Mlp(48)),) * 2))
    tokens, order = ids(1, 9), torch.randperm(9, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (
            far(*(model(tokens[:, order], Step.plain(tokens, mask=causal)), model(tokens, Step.plain(tokens, mask=causal))[:, order]))
            > 1e-3
        )
        return far(model(tokens[:, order]), model(tokens)[:, order])


def windowed(n: int | None, sinks: bool = False) -> Any:
    attn = replace(QWEN3.layers[0].attn, window=n, sinks=sinks)
    return tiny(replace(QWEN3, layers=(c.Layer(attn, c.Mlp(48)),) * 2))


attention = importlib.import_module("pellucid.nn.attention")
wider = (attention, "window", lambda n, right=attention.window: right(n + 1))
narrower = (attention, "window", lambda n, right=attention.window: right(n - 1))


@law(0.0, wider=wider, narrower=narrower)
def test_16_windows() -> float:
    """A window counts the token itself: 1 is itself alone, L is all, 3 is the pattern of three; cached or not."""
    tokens, wrong = ids(1, 9), 0.0
    back = torch.arange(9)[:, None] - torch.arange(9)
    for n in (1, 3, 8, 9, 40):
        model = windowed(n)
        with torch.no_grad(), watch(model) as seen:
            out = model(tokens)
        seen_there = seen["layers.1.attn.pattern"].value[0] > 0
        wrong += float((seen_there != ((back >= 0) & (back < n))).sum())
        with torch.no_grad():
            wrong += far(out, windowed(None)(tokens)) > 1e-10 if n >= 9 else far(out, windowed(None)(tokens)) < 1e-6
            wrong += far(out[0], serve(model, {0: tokens[0]}, [{0: 2}, *[{0: 1}] * 7], PagedCache(8, 2))[0]) > 1e-10
            wrong += n == 1 and not torch.equal(seen["layers.1.attn.z"].value[0], seen["layers.1.attn.v"].value[0].repeat_interleave(2, 1))
    return float(wrong)


def logits_with_sinks(model: Decoder, value: float, tokens: Tensor) -> Tensor:
    """Return the logits with every sink at this value, plainly and over pages."""
    for layer in model.layers:
        layer.attn.sinks.data.fill_(value)
    return torch.stack([model(tokens)[0], serve(model, {0: tokens[0]}, [{0: 2}, *[{0: 1}] * 7], PagedCache(8, 2))[0]])


@law(dropped=without(Attention, "sinks"), wider=wider)
def test_16_sinks() -> float:
    """A sink of -inf is none, one far above all scores takes everything, and a window keeps it."""
    tokens, model, plain = ids(1, 9), windowed(3, sinks=True), windowed(3)
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        none = far(logits_with_sinks(model, float("-inf"), tokens), plain(tokens).expand(2, -1, -1))
        for layer in plain.layers:
            layer.attn.o.weight.data.zero_()
        everything = far(logits_with_sinks(model, 1e4, tokens), plain(tokens).expand(2, -1, -1))
    model = windowed(3, sinks=True)
    with torch.no_grad(), watch(model) as seen:
        model(tokens)
    scores, pattern = (seen[f"layers.1.attn.{n}"].value for n in ("scores", "pattern"))
    back = torch.arange(9)[:, None] - torch.arange(9)
    e = scores.exp().masked_fill((back < 0) | (back >= 3), 0.0)
    hand = e / (e.sum(-1, keepdim=True) + model.layers[1].attn.sinks.detach().exp()[:, None, None])
    return max(none, everything, far(pattern, hand))


def test_pairs_may_turn_backwards_mutant() -> None:
    """What turned forwards turns back by as much; the mutant turns on."""
    x, at = torch.randn(1, 5, 2, 8, dtype=torch.float64), torch.arange(5)[None]

    def rotated(x: Tensor, rope: c.Rope) -> Tensor:
        return ops.rotate(x, ops.angles(at, rope, x.dtype), False, rope)

    assert far(rotated(rotated(x, c.Rope(8)), c.Rope(8, backwards=True)), x) < 1e-14
    assert far(rotated(rotated(x, c.Rope(8)), c.Rope(8)), x) > 0.1
