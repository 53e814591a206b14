"""Weights may be permuted, split or zeroed without a change of the logits, and each small part is its formula."""

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.attention import Attention
from pellucid.nn.block import Block
from pellucid.nn.head import LogitsHead
from pellucid.nn.linear import Embedding
from pellucid.nn.moe import Moe
from pellucid.nn.transformer import Decoder
from pellucid.ops import native
from pellucid.watching.watch import watch
from tiny import CLAMPED, DECODERS, EXPERTS, FAMILIES, GPT2, LLAMA, MLP, QWEN3, D, V, far, ids, inputs, law, swapped, tiny, without

attend = importlib.import_module("pellucid.ops.attend")  # the package names functions like their modules
norms = importlib.import_module("pellucid.ops.norm")
sdpa, embedding, gate, combine, rms, layer, add, scaled = (
    attend.attend_sdpa, ops.embedding, ops.gate, ops.combine, ops.rms, ops.layer, ops.add, ops.scaled,
)  # fmt: skip
TOKENS = ids(2, 9)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def order(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def changed(model: Any, edit: Callable[[Any], None], *arguments: Tensor) -> float:
    """Return how far an edit of the weights moves the logits."""
    before = model(*arguments)
    edit(model)
    return far(model(*arguments), before)


def tiled(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """Put groups in the order of tile: head h reads group h mod G, as a mutant."""
    n = q.shape[2] // k.shape[2]
    return sdpa(q, k.repeat(1, 1, n, 1), v.repeat(1, 1, n, 1), *rest)


def ungrouped(model: Decoder, cfg: c.Config, tile: bool = False) -> Decoder:
    """Return MHA with each group's keys and values written out for its heads."""
    attn = cfg.layers[0].attn
    assert isinstance(attn, c.Attention)
    plain_model = tiny(replace(cfg, layers=tuple(replace(x, attn=replace(x.attn, kv_heads=x.attn.heads)) for x in cfg.layers)))
    state, n = model.state_dict(), attn.heads // attn.kv_heads
    for name, w in state.items():
        if ".attn.k." in name or ".attn.v." in name:
            heads = w.unflatten(0, (attn.kv_heads, -1))
            state[name] = (torch.cat([heads] * n) if tile else heads.repeat_interleave(n, 0)).flatten(0, 1)
    plain_model.load_state_dict(state)
    return plain_model


@law(tiled=(attend, "attend_sdpa", tiled))
def test_11_grouped_is_whole_heads() -> float:
    """GQA and MQA equal MHA by repeat_interleave; the order of tile is another model."""
    with torch.no_grad():
        gaps = []
        for name in ("llama", "qwen3", "gpt_oss"):
            model, cfg = tiny(name), FAMILIES[name]
            gaps.append(far(ungrouped(model, cfg)(TOKENS), model(TOKENS)))
            assert far(ungrouped(model, cfg, tile=True)(TOKENS), ungrouped(model, cfg)(TOKENS)) > 1e-3
        cfg = replace(LLAMA, layers=(c.Layer(c.Attention(4, 1, 8, c.Rope(8)), MLP),) * 2)
        return max(*gaps, far(ungrouped(tiny(cfg), cfg)(TOKENS), tiny(cfg)(TOKENS)))


def moe_of(spec: c.Moe) -> Moe:
    return tiny(replace(LLAMA, layers=(c.Layer(LLAMA.layers[0].attn, spec),))).layers[0].ffn  # type: ignore[no-any-return]


def dense(moe: Moe, x: Tensor) -> Tensor:
    """Return every expert for every token times its share, 0 where it was not chosen."""
    logits = F.linear(x, moe.router.weight, moe.router.bias)
    share, chosen = moe.choose(logits)
    shares = torch.zeros_like(logits).scatter(-1, chosen, share)
    each = []
    for e in range(moe.spec.experts):
        g, u = (F.linear(x, getattr(moe, n)[e], None if moe.gate_bias is None else getattr(moe, f"{n}_bias")[e]) for n in ("gate", "up"))
        down = F.linear(ops.gate(g, u, moe.spec.act), moe.down[e], None if moe.down_bias is None else moe.down_bias[e])
        each.append(down * shares[..., e, None])
    out = torch.stack(each).sum(0)
    return out if moe.shared is None else out + moe.shared(x)


ROUTES = [EXPERTS, CLAMPED, replace(EXPERTS, chosen=4, normalised=False, shared=0)]
ROUTES += [replace(CLAMPED, chosen=4), replace(CLAMPED, normalised=False)]
WRONG_SHARES = (ops, "combine", lambda y, share, at, like: combine(y, share.roll(1, -1), at, like))


NOT_SORTED = (Tensor, "argsort", lambda x, stable=False: torch.arange(len(x)))


@law(wrong_shares=WRONG_SHARES, not_sorted=NOT_SORTED)
def test_13_experts_are_a_dense_sum() -> float:
    """Sorted rows equal the dense sum whichever experts are chosen, all tokens to one expert too."""
    gaps = []
    with torch.no_grad():
        for spec in ROUTES:
            moe, x = moe_of(spec), rows(2, 9, D)
            gaps += [far(moe(x), dense(moe, x)), far(moe(x[:, order(9)]), moe(x)[:, order(9)]), far(moe(x[:, :1]), moe(x)[:, :1])]
            moe.router.weight.data[1:] = moe.router.weight.data[:1]  # ties everywhere
            gaps += [far(moe(x), dense(moe, x)), far(moe(x[:, 3:5]), moe(x)[:, 3:5])]
    return max(gaps)


@law(not_sorted=NOT_SORTED)
def test_13_experts_may_change_places() -> float:
    """Experts permuted with their router rows and corrections, by whole groups and within them, give the same logits."""

    def permuted(model: Decoder) -> None:
        for moe in (m for m in model.modules() if isinstance(m, Moe)):
            p = torch.arange(moe.spec.experts).view(moe.spec.groups, -1)
            p = p[order(len(p))][:, order(p.shape[1])].flatten()
            biases = (moe.gate_bias, moe.up_bias, moe.down_bias, moe.router.bias, moe.correction)
            for t in (moe.gate, moe.up, moe.down, moe.router.weight, *biases):
                if t is not None:
                    t.data = t.data[p]

    return max(changed(tiny(f), permuted, TOKENS) for f in ("deepseek_v3", "gpt_oss"))


def test_13_routing_by_hand() -> None:
    """Of two groups of two one is kept: the correction decides the choice, the score alone the share."""
    moe = moe_of(c.Moe(4, 2, 8, groups=2, groups_chosen=1, scale=2.0))
    moe.correction.copy_(torch.tensor([0.0, 0.0, 0.5, 0.5]))
    logits = torch.tensor([[[2.0, 1.0, 0.5, -0.5], [3.0, 2.5, -3.0, -3.0]]], dtype=torch.float64)
    share, chosen = moe.choose(logits)
    score = logits.sigmoid()[0]
    assert chosen[0].tolist() == [[2, 3], [0, 1]]
    assert far(share[0], 2.0 * torch.stack([score[0, 2:] / score[0, 2:].sum(), score[1, :2] / score[1, :2].sum()])) < 1e-12
    model = moe_of(c.Moe(3, 2, 8, affinity="softmax", corrected=False))
    share, chosen = model.choose(logits[..., :3])
    assert chosen[0, 0].tolist() == [0, 1] and far(share[0, 0], torch.tensor([1 / (1 + math.exp(-1)), 1 / (1 + math.e)])) < 1e-6


def capped(cap: float | None, scale: float | None = None) -> Any:
    attn = replace(LLAMA.layers[0].attn, cap=cap, scale=scale)
    return tiny(replace(LLAMA, layers=(c.Layer(attn, MLP),) * 2))


@law(not_capped=(torch, "tanh", lambda x: x), no_scale=(attend, "attend_sdpa", lambda *a: sdpa(*a[:-1], 1.0)))
def test_17_caps_and_scales() -> float:
    """A distant cap changes nothing, one of 5 is 5·tanh(s / 5), and a scale of 1/√K is the default."""
    with torch.no_grad():
        plain = capped(None)(TOKENS)
        gaps = [far(capped(1e9)(TOKENS), plain), far(capped(None, 8**-0.5)(TOKENS), plain)]
        gaps.append(0.0 if far(capped(None, 0.5)(TOKENS), plain) > 1e-3 else float("inf"))
        model = capped(5.0)
        with watch(model) as seen:
            model(TOKENS)
    q, k = seen["layers.0.attn.q_rot"].value, seen["layers.0.attn.k_rot"].value.repeat_interleave(2, 2)
    raw = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(8)
    return max(*gaps, far(seen["layers.0.attn.scores"].value, 5 * (raw / 5).tanh()))


def louder(model: Decoder) -> None:
    for x in model.layers:
        x.attn.q.weight.data.mul_(7)
        x.attn.k.weight.data.mul_(3)


@law(not_normed=without(Attention, "q_norm"))
def test_17_norms_of_heads() -> float:
    """With a norm on every head's query and key the sizes of their projections do not count (eps → 0)."""
    return changed(tiny(replace(QWEN3, eps=0.0)), louder, TOKENS)


@law(not_scaled=(ops, "scaled", lambda x, factor: scaled(x, 1.0)))
def test_17_scale_of_logits() -> float:
    """T5's head reads rows divided by √D."""
    plain_model = tiny(replace(FAMILIES["t5"], logit_scale=1.0))
    with torch.no_grad():
        return far(tiny("t5")(*inputs("t5")), plain_model(*inputs("t5")) / math.sqrt(D))


add_head = LogitsHead.add_head


def copied(self: LogitsHead, cfg: c.Config, embed: Embedding) -> None:
    """Return a head that begins as the embedding but is not tied, as a mutant."""
    add_head(self, cfg, embed)
    self.head.weight = nn.Parameter(embed.weight.detach().clone())


def learn(model: Decoder) -> Decoder:
    """Return the model with the gradients of a loss."""
    F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.roll(1).flatten()).backward()
    return model


@law(copied=(LogitsHead, "add_head", copied))
def test_18_tied() -> float:
    """A tied weight has one storage, counted once, and the sum of both gradients; an untied model has two."""
    gaps = []
    for cfg in (GPT2, QWEN3):
        model = learn(tiny(cfg))
        untied = tiny(replace(cfg, tied=False))
        untied.load_state_dict(model.state_dict())
        learn(untied)
        gaps.append(far(model.embed.weight.grad, untied.embed.weight.grad + untied.head.weight.grad))
        gaps.append(float(model.head.weight.data_ptr() != model.embed.weight.data_ptr()))
        gaps.append(float(untied.head.weight.data_ptr() == untied.embed.weight.data_ptr()))
        count = lambda m: sum(p.numel() for p in m.parameters())  # noqa: E731
        gaps.append(float(count(untied) - count(model) != V * D))
    return max(gaps)


@law(
    1e-9,
    not_divided=(ops, "rms", lambda x, w, eps: x * w),
    centred=(ops, "rms", lambda x, w, eps: rms(x - x.mean(-1, keepdim=True), w, eps)),
)
def test_19_rms() -> float:
    """RMSNorm is its formula, and its input's size does not count (eps → 0)."""
    x, w = rows(2, 5, D), rows(D, seed=1)
    hand = torch.stack([r / math.sqrt(float(r.square().sum()) / D + 0.1) * w for r in x.flatten(0, 1)]).view_as(x)
    return max(far(ops.rms(x, w, 0.1), hand), far(ops.rms(x * 31, w, 0.0), ops.rms(x, w, 0.0)))


@law(
    1e-9,
    not_centred=(ops, "layer", lambda x, w, b, eps: rms(x, w, eps) + b),
    eps_outside=(ops, "layer", lambda x, w, b, eps: layer(x, w, b, eps**2)),
)
def test_19_layer_norm() -> float:
    """LayerNorm is its formula; a shift of its input does not count, nor (eps → 0) its size."""
    x, w, b = rows(2, 5, D), rows(D, seed=1), rows(D, seed=2)
    hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt() * w + b
    moved = ops.layer((x + 5) * 3, w, b, 0.0)
    return max(far(ops.layer(x, w, b, 0.1), hand), far(moved, ops.layer(x, w, b, 0.0)))


@law(1e-3, narrow=(norms, "wide", lambda dtype: dtype))
def test_19_norms_are_wide_inside() -> float:
    """Few bfloat16 results differ from the exact ones rounded once, and the kernel has no more of them."""
    x, w = rows(64, D).bfloat16(), torch.ones(D, dtype=torch.bfloat16)
    exact = ops.rms(x.double(), w.double(), 1e-6).bfloat16()
    with native.off():
        plain = ops.rms(x, w, 1e-6)
    return max(float((y != exact).double().mean()) for y in (plain, ops.rms(x, w, 1e-6)))


@law(next_row=(ops, "embedding", lambda t, table, *skip: embedding((t + 1) % len(table), table, *skip)))
def test_20_vocabulary_may_be_renumbered() -> float:
    """Permuting the rows of table and head permutes the logits."""
    gaps = []
    with torch.no_grad():
        for f, cfg in FAMILIES.items():
            model, p = tiny(f), order(V)
            args = inputs(f)
            before = model(*args)
            model.embed.weight.data[p] = model.embed.weight.data.clone()
            if not cfg.tied:
                model.head.weight.data[p] = model.head.weight.data.clone()
            gaps.append(far(model(*(p[a] for a in args))[..., p], before))
    return max(gaps)


def scrambled(q: Tensor, *rest: Any) -> Tensor:
    """Join heads without transposing first, as a mutant."""
    z = right_attend(q, *rest)
    return z.transpose(1, 2).reshape(z.shape)


right_attend = ops.attend


def permuted_heads(model: Any) -> None:
    """Permute groups of heads in q, k, v, sinks, tables, and o's columns."""
    for part in model.modules():
        if hasattr(part, "kv_b"):
            n, width = part.spec.heads, part.spec.value
            moved: list[tuple[nn.Module | None, int]] = [(part.q_b, n), (part.kv_b, n)]
        elif hasattr(part, "o"):
            g = part.k.weight.shape[0] // part.width
            n, width = g, part.o.weight.shape[1] // g
            moved = [(part.q, g), (part.k, g), (part.v, g)]
            if part.sinks is not None:
                part.sinks.data = part.sinks.data.unflatten(0, (g, -1))[order(g)].flatten()
            if part.relative is not None and not hasattr(part.relative, "reordered"):
                part.relative.weight.data, part.relative.reordered = part.relative.weight.data[:, order(g)], True
        else:
            continue
        for linear, heads in moved:
            for p in linear.parameters():
                p.data = p.data.unflatten(0, (heads, -1))[order(heads)].flatten(0, 1)
        part.o.weight.data = part.o.weight.data.unflatten(1, (n, width))[:, order(n)].flatten(1)


@law(scrambled=(ops, "attend", scrambled))
def test_21_heads_may_change_places() -> float:
    """Heads permuted with their columns of o give the same logits."""
    return max(changed(tiny(f), permuted_heads, *inputs(f)) for f in FAMILIES)


def turned_neurons(model: Any) -> None:
    for part in model.modules():
        if isinstance(getattr(part, "down", None), nn.Linear):
            p = order(part.down.weight.shape[1])
            for name in ("up", "gate"):
                for w in getattr(part, name).parameters() if hasattr(part, name) else ():
                    w.data = w.data[p]
            part.down.weight.data = part.down.weight.data[:, p]
        elif isinstance(part, Moe):
            p = order(part.spec.width)
            part.gate.data, part.up.data, part.down.data = part.gate.data[:, p], part.up.data[:, p], part.down.data[..., p]
            if part.gate_bias is not None and part.up_bias is not None:
                part.gate_bias.data, part.up_bias.data = part.gate_bias.data[:, p], part.up_bias.data[:, p]


@law(neighbours=(ops, "gate", lambda g, up, act: gate(g.roll(1, -1), up, act)))
def test_21_neurons_may_change_places() -> float:
    return max(changed(tiny(f), turned_neurons, *inputs(f)) for f in FAMILIES)


def post_normed(self: Block, x: Tensor, part: str, total: str, step: Step) -> Tensor:
    x = getattr(self, f"{part}_norm")(x)
    return ops.add(x, getattr(self, part)(x, step))


@law(post_normed=(Block, "sum", post_normed))
def test_22_residual_stream() -> float:
    """Parts that write nothing give the logits of a model without layers."""
    gaps = []
    with torch.no_grad():
        for f in DECODERS:
            model = tiny(f)
            for name, p in model.named_parameters():
                if ".o." in name or ".down" in name:
                    p.zero_()
            out, model.layers = model(TOKENS), nn.ModuleList()
            gaps.append(far(out, model(TOKENS)))
    return max(gaps)


def right_gradients(f: str, largest: int = 10_000) -> bool:
    """Compare finite differences with autograd through one block of a family: its rows, and its parameters of at most `largest` numbers."""
    model = tiny(f)
    stack = model.decoder if f == "t5" else model
    block, step, x = stack.layers[-1], Step.plain(TOKENS[:1, :3]), rows(1, 3, D).requires_grad_()
    if f == "t5":
        step.source = rows(1, 3, D, seed=1), Step.plain(TOKENS[:1, :3])
    chosen = {n: p.detach().clone().requires_grad_() for n, p in block.named_parameters() if p.numel() <= largest}
    names, values = chosen.keys(), chosen.values()

    def run(x: Tensor, *values: Tensor) -> Tensor:
        step.once.clear()
        step.kept.clear()
        return functional_call(block, dict(zip(names, values, strict=True)), (x, step))

    torch.manual_seed(0)  # gradcheck draws the directions it looks in
    return torch.autograd.gradcheck(run, (x, *values), fast_mode=True, raise_exception=False, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("f", FAMILIES)
def test_30_gradients(f: str) -> None:
    assert right_gradients(f)


@pytest.mark.parametrize(
    ("f", "name", "wrong"),
    [
        ("llama", "rms", lambda x, w, eps: rms(x.detach(), w, eps)),
        ("gpt2", "layer", lambda x, w, b, eps: layer(x, w.detach(), b, eps)),
        ("qwen3", "gate", lambda g, up, act: gate(g, up.detach(), act)),
        ("deepseek_v3", "combine", lambda y, share, at, like: combine(y, share.detach(), at, like)),
        ("gpt_oss", "add", lambda x, y: add(x.detach(), y)),
    ],
)
@pytest.mark.quick(4)
def test_30_gradients_mutants(f: str, name: str, wrong: Any) -> None:
    with swapped(ops, name, wrong):
        assert not right_gradients(f, D)  # where one fails, gradcheck writes out every number's
