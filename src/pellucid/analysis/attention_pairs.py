"""Equal ways to compute attention in a run's first block, each from the tensors that the run recorded: why it is as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pellucid import ops
from pellucid.analysis.equal_pairs import EqualPair, Reason
from pellucid.analysis.independence import reads, step_of
from pellucid.analysis.score_spread import drawn_variance
from pellucid.api.model import Model
from pellucid.nn.latent import Latent
from pellucid.nn.low_rank import LowRank
from pellucid.tracing import Trace

ATTN = "layers.0.attn"
SHIFT = 1000  # that is added to every score


@dataclass(frozen=True, eq=False)
class AttentionReads:
    """What attention reads, in float64. q: [H T K].  k: [G S K].  v: [G S W].  hidden: where a query sees no key, [1 T S]."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    hidden: Tensor

    @property
    def keys(self) -> Tensor:
        """Return a key for every head: those of a group are repeated side by side [H S K]."""
        return self.for_heads(self.k)

    @property
    def scores(self) -> Tensor:
        """Return the scores of every query with every key [H T S], the hidden ones too."""
        return self.q @ self.keys.mT * self.scale

    @property
    def shares(self) -> Tensor:
        """Return the weights [H T S]."""
        return self.softmax(self.scores)

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the weights of scores [H T S], 0 where hidden."""
        return scores.masked_fill(self.hidden, -torch.inf).softmax(-1)

    def for_heads(self, x: Tensor) -> Tensor:
        """Repeat what groups share [G S ...] for their heads [H S ...]."""
        return x.repeat_interleave(len(self.q) // len(x), 0)

    def part(self, rows: slice, keys: slice) -> "AttentionReads":
        """Return what some rows read of some keys."""
        return replace(self, q=self.q[:, rows], k=self.k[:, keys], v=self.v[:, keys], hidden=self.hidden[:, rows, keys])

    def attend(self) -> Tensor:
        """Return the sums of values [H T W]."""
        return self.shares @ self.for_heads(self.v)


def recorded(run: Trace, path: str) -> Tensor:
    """Return a tensor of a run's first step without its batch, in float64."""
    value: Tensor = run.all(path)[0].value
    return value[0].double()


def hidden_keys(run: Trace) -> Tensor:
    """Return where a query of the first block sees no key, [1 T S]."""
    part, at = run.runner.module.get_submodule(ATTN), torch.arange(len(run.ids), device=run.runner.device)
    mask = part.mask(step_of(run.all("embed")[0].value))
    seen: Tensor = mask.allowed(at.view(1, 1, -1, 1), at.view(1, 1, 1, -1))
    return ~seen[0]


def operands(run: Trace) -> AttentionReads:
    """Return what the first block's attention read. Of latent attention the keys and values that grow from the latent."""
    seen = {s.path: s for s in run if s.step == 0}
    scores = seen[f"{ATTN}.scores"]
    if f"{ATTN}.k_shared" in seen:
        k, shared = recorded(run, f"{ATTN}.k"), recorded(run, f"{ATTN}.k_shared")[:, None]
        q = recorded(run, f"{ATTN}.q_grown" if f"{ATTN}.q_grown" in seen else f"{ATTN}.q")[..., : k.shape[-1]]
        q, k = torch.cat([q, recorded(run, f"{ATTN}.q_rot")], -1), torch.cat([k, shared.expand(-1, k.shape[1], -1)], -1)
        v = recorded(run, f"{ATTN}.v")
    else:
        q, k, v = (recorded(run, path) for path in seen[f"{ATTN}.z"].inputs[:3])
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return AttentionReads(q, k, v, float(scores.settings["scale"]), hidden_keys(run))


def attention_of(model: Model) -> Any:
    """Return the spec of the first block's attention."""
    return model.config.layers[0].attn


def scaled(run: Trace) -> EqualPair:
    """Multiply scores by the scale, or queries before; the case: neither."""
    o = operands(run)
    width, drawn = o.q.shape[-1], drawn_variance(o.q.shape[-1])
    other = o.softmax((o.q * o.scale) @ o.keys.mT)
    numbers = {"width": width, "variance": drawn, "scaled": drawn * o.scale**2}
    return EqualPair(o.shares, other, (o.shares, o.softmax(o.scores / o.scale)), numbers)


def by_exponentials(scores: Tensor) -> Tensor:
    """Return softmax as it is defined: e^x over its sum."""
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True)


def shifted(run: Trace) -> EqualPair:
    """Take softmax with the row's largest score taken off, or without; the case: scores so large that e^x overflows."""
    o = operands(run)
    scores = o.scores.masked_fill(o.hidden, -torch.inf)
    one, large = by_exponentials(scores - scores.amax(-1, keepdim=True)), by_exponentials(scores + SHIFT)
    numbers = {"shift": SHIFT, "lost": int(large.isnan().sum()), "of": large.numel()}
    return EqualPair(one, by_exponentials(scores), (one, large), numbers)


def masked(run: Trace) -> EqualPair:
    """Hide keys by a score of −∞, or by a weight of 0 with the others over their sum; the case: a score of 0."""
    o = operands(run)
    open_shares = o.scores.softmax(-1).masked_fill(o.hidden, 0.0)
    leaking = o.scores.masked_fill(o.hidden, 0.0).softmax(-1)
    numbers = {"leak": float(leaking.masked_fill(~o.hidden, 0.0).sum(-1).max())}
    return EqualPair(o.shares, open_shares / open_shares.sum(-1, keepdim=True), (o.shares, leaking), numbers)


def in_blocks(blocks: Sequence[tuple[Tensor, Tensor]], rescaled: bool = True) -> Tensor:
    """Sum values [H T W] over blocks of keys that are read in turn (arXiv 2205.14135). blocks: scores [H T S] and values [H S W] of each.

    rescaled: False leaves the sums of earlier blocks as they are when a later one has a larger score.
    """
    scores, values = blocks[0]
    most = scores.new_full((*scores.shape[:2], 1), -1e30)
    total, z = torch.zeros_like(most), scores.new_zeros(*scores.shape[:2], values.shape[-1])
    for scores, values in blocks:
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        powers, factor = (scores - larger).exp(), (most - larger).exp() if rescaled else 1.0
        total, z, most = total * factor + powers.sum(-1, keepdim=True), z * factor + powers @ values, larger
    return z / total


def blocked(run: Trace) -> EqualPair:
    """Take softmax over a row at once, or over two blocks of keys, in either order; the case: sums that no larger maximum rescales."""
    o = operands(run)
    scores, v, keys = o.scores.masked_fill(o.hidden, -torch.inf), o.for_heads(o.v), o.k.shape[1]
    parts = [(scores[..., cut], v[:, cut]) for cut in (slice(0, keys // 2), slice(keys // 2, keys))]
    one, (other, unscaled) = o.attend(), (torch.stack([in_blocks(order, on) for order in (parts, parts[::-1])]) for on in (True, False))
    both = one.expand_as(other)
    return EqualPair(both, other, (both, unscaled), {"keys": keys, "block": keys - keys // 2})


def chunked(run: Trace) -> EqualPair:
    """Attend from all rows at once, or from the last rows later, over the keys that were kept; the case: nothing was kept."""
    o = operands(run)
    cut, rows = o.q.shape[1] // 2, o.q.shape[1]
    one, first = o.attend(), o.part(slice(0, cut), slice(0, cut)).attend()
    later, alone = (o.part(slice(cut, rows), slice(start, rows)).attend() for start in (0, cut))
    other, lost = (torch.cat([first, rest], 1) for rest in (later, alone))
    return EqualPair(one, other, (one, lost), {"first": cut, "rows": rows})


def shared(run: Trace) -> EqualPair:
    """Repeat a group's key for its heads, or multiply the queries of a group at once; the case: groups repeated in turn."""
    o = operands(run)
    (heads, rows, width), groups = o.q.shape, len(o.k)
    grouped = (o.q.reshape(groups, -1, width) @ o.k.mT).view(heads, rows, -1) * o.scale
    in_turn = o.q @ o.k.repeat(heads // groups, 1, 1).mT * o.scale
    return EqualPair(o.scores, grouped, (o.scores, in_turn), {"heads": heads, "groups": groups})


def absorbed(run: Trace) -> EqualPair:
    """Grow keys from the latent, or move queries to it; the case: a rotation between both, which is other for every pair."""
    part: Latent = run.runner.module.get_submodule(ATTN)
    spec = part.spec
    up = part.kv_b.dense_weight().detach().double().unflatten(0, (-1, spec.key + spec.value))[:, : spec.key]
    latent, q = recorded(run, f"{ATTN}.latent"), recorded(run, f"{ATTN}.q")[..., : spec.key]
    k = torch.einsum("sc,hkc->shk", latent, up)
    at = torch.arange(len(q), device=q.device)[None]
    angles = ops.angles(at, replace(spec.rope, width=spec.key, scaling=None), q.dtype)
    q_rot, k_rot = (ops.rotate(x[None], angles, spec.rope.interleaved)[0] for x in (q, k))

    def moved(queries: Tensor) -> Tensor:
        return torch.einsum("thk,hkc,sc->hts", queries, up, latent)

    numbers = {"kept": spec.kv_rank + spec.rope.width, "grown": spec.heads * (spec.key + spec.rope.width + spec.value)}
    return EqualPair(torch.einsum("thk,shk->hts", q, k), moved(q), (torch.einsum("thk,shk->hts", q_rot, k_rot), moved(q_rot)), numbers)


def other_layout(width: int, interleaved: bool) -> Tensor:
    """Return the order that brings channels into the other layout of pairs: side by side, or half a width apart."""
    pairs = torch.arange(width).view(-1, 2) if interleaved else torch.arange(width).view(2, -1)
    return pairs.T.flatten()


def rotated(run: Trace) -> EqualPair:
    """Rotate pairs in the model's layout, or permuted in the other; the case: the other layout without the permutation."""
    rope = attention_of(run.runner).rope
    x = recorded(run, run.all(f"{ATTN}.q_rot")[0].inputs[0])[None]
    order, rest = other_layout(rope.width, rope.interleaved).to(x.device), x[..., rope.width :]
    angles = ops.angles(torch.arange(x.shape[1], device=x.device)[None], rope, x.dtype)
    one, misread = (ops.rotate(x, angles, layout) for layout in (rope.interleaved, not rope.interleaved))
    permuted = ops.rotate(x[..., order], angles, not rope.interleaved)
    other = torch.cat([permuted[..., order.argsort()], rest], -1)
    return EqualPair(one, other, (one, misread), {"half": rope.width // 2})


def unbiased(run: Trace) -> EqualPair:
    """Give keys their bias, or none; the case: queries without theirs."""
    o, part = operands(run), run.runner.module.get_submodule(ATTN)
    key, query = (b.detach().double().view(len(x), 1, -1) for b, x in ((part.k.bias, o.k), (part.q.bias, o.q)))
    without_key, without_query = replace(o, k=o.k - key), replace(o, q=o.q - query)
    return EqualPair(o.shares, without_key.shares, (o.shares, without_query.shares), {"bias": float(key.abs().max())})


def weights(linear: Any) -> tuple[Tensor, Tensor]:
    """Return a matrix and its bias in float64; 0 where it has none. Of a thin pair the product."""
    if isinstance(linear, LowRank):
        wide, bias = weights(linear.widen)
        return wide @ weights(linear.narrow)[0], bias
    w = linear.dense_weight().detach().double()
    return w, w.new_zeros(len(w)) if linear.bias is None else linear.bias.detach().double()


def joined(run: Trace) -> EqualPair:
    """Make queries, keys and values by three products, or by one; the case: rows that stand group by group, cut into thirds."""
    part, x = run.runner.module.get_submodule(ATTN), recorded(run, reads(run, ATTN))
    three = [weights(getattr(part, name)) for name in ("q", "k", "v")]
    one = torch.cat([x @ w.T + b for w, b in three], -1)
    other = x @ torch.cat([w for w, _ in three]).T + torch.cat([b for _, b in three])
    groups = attention_of(run.runner).kv_heads
    thirds = torch.arange(one.shape[-1], device=x.device).split([len(w) for w, _ in three])
    by_group = torch.cat([third.view(groups, -1) for third in thirds], 1).flatten()
    return EqualPair(one, other, (one, other[..., by_group]), {"rows": one.shape[-1], "width": x.shape[-1]})


AFTER_BIAS = ("rope", "qk_norm", "qk_rms", "temper", "clip", "cap")  # fields that change keys or scores behind a bias


def has_plain_bias(model: Model) -> bool:
    """True if the first block's keys have a bias and scores are products of them."""
    spec = attention_of(model)
    return spec.kind != "MLA" and spec.bias and spec.key_factor == 1.0 and not any(getattr(spec, name) for name in AFTER_BIAS)


def has_fixed_rope(model: Model) -> bool:
    """True if the first block's heads have rotary positions that no length changes."""
    spec = attention_of(model)
    return spec.kind != "MLA" and spec.rope is not None and not spec.rope.by_length


def has_groups(model: Model) -> bool:
    """True if the first block has several groups of keys and values, each made by a product."""
    spec = attention_of(model)
    return spec.kind in ("MHA", "GQA") and not spec.v_from_k


SCORES: Sequence[Reason] = (
    Reason("scale", "(q · k)·s = (s·q) · k", scaled, lambda m: attention_of(m).scale != 1.0),
    Reason("max", "softmax(x) = softmax(x − max)", shifted),
    Reason("mask", "softmax(−∞) = 0 / Σ", masked),
    Reason("blocks", "Σ eˣ·v / Σ eˣ = (Σ₁ + Σ₂) / (l₁ + l₂)", blocked),
    Reason("chunks", "z = [z₁ ; z₂]", chunked),
)
LAYOUTS: Sequence[Reason] = (
    Reason("groups", "Q · [k ; k]ᵀ = [Q₁ ; Q₂] · kᵀ", shared, lambda m: attention_of(m).kind == "GQA", "pellucid/capitals-llama"),
    Reason("latent", "q · (U·c) = (Uᵀ·q) · c", absorbed, lambda m: attention_of(m).kind == "MLA", "pellucid/capitals-deepseek"),
    Reason("rope", "R·x = P⁻¹·R′·P·x", rotated, has_fixed_rope, "pellucid/capitals-llama"),
    Reason("bias", "softmax(q·(k + b)) = softmax(q·k)", unbiased, has_plain_bias),
    Reason("products", "[W₁·x ; W₂·x] = [W₁ ; W₂]·x", joined, has_groups),
)
