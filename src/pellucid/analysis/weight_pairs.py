"""Equal ways to hold and use a model's weights, each over the tensors of a run: why they may be folded, joined, shared and left idle."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid import ops
from pellucid.analysis.attention_pairs import ATTN, recorded, weights
from pellucid.analysis.equal_pairs import EqualPair, Reason
from pellucid.analysis.expert_scores import sparse
from pellucid.analysis.independence import reads
from pellucid.api.model import Model
from pellucid.nn.moe import Moe
from pellucid.nn.norm import NORMS
from pellucid.nn.transformer import cast
from pellucid.tracing import Trace

RANK, FINE = 4, 512  # of an addition, and how many times smaller than the matrix it is
SMALL = 10_000_000  # parameters of a model that is copied in float64, and whose experts all run


def attention(run: Trace) -> Any:
    """Return the first block's attention."""
    return run.runner.module.get_submodule(ATTN)


def query_name(part: Any) -> str:
    """Return the name of the first matrix that queries go through."""
    return "q_a" if getattr(part, "q_a", None) is not None else "q"


def folded(run: Trace) -> EqualPair:
    """Multiply by a norm's weight and then by a matrix, or by their product; the case: another matrix that reads the norm as well."""
    part, norm = attention(run), run.runner.module.layers[0].attn_norm
    x = recorded(run, run.all(f"{ATTN}_norm")[0].inputs[0])
    bare = x - x.mean(-1, keepdim=True) if norm.centred else x
    bare = bare / (bare.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    gain = norm.gain().detach().double()
    bias = norm.bias.detach().double() if hasattr(norm, "bias") else torch.zeros_like(gain)
    full, second = bare * gain + bias, "kv_a" if hasattr(part, "kv_a") else "k"
    (w, b), (u, c) = weights(getattr(part, query_name(part))), weights(getattr(part, second))
    other = bare @ (w * gain).T + (w @ bias + b)
    return EqualPair(full @ w.T + b, other, (full @ u.T + c, bare @ u.T + c), {"first": query_name(part), "second": second})


def gradients(model: Model, ids: Sequence[int], tied: bool) -> tuple[Tensor, ...]:
    """Return the gradients of a text's loss by the table of the first product and of the last, one if they are the same, in float64."""
    module = cast(deepcopy(model.module), torch.float64)
    table = torch.nn.Parameter(module.embed.weight.detach().clone())
    head = table if tied else torch.nn.Parameter(table.detach().clone())
    module.embed.weight, module.head.weight = table, head
    tokens = torch.tensor([list(ids)], device=model.device)
    with torch.enable_grad():
        loss = F.cross_entropy(module(tokens)[0, :-1], tokens[0, 1:])
        return torch.autograd.grad(loss, [table] if tied else [table, head])


def tied(run: Trace) -> EqualPair:
    """Train one table for the first and the last product, or sum the gradients of two; the case: each of two takes its own."""
    (both,), (first, last) = (gradients(run.runner, run.ids, tied) for tied in (True, False))
    return EqualPair(both, first + last, (first, last), {"numbers": both.numel()})


def expert_rows(part: Moe, x: Tensor, e: int) -> Tensor:
    """Return what an expert makes of rows x [N D]."""

    def product(name: str, rows: Tensor) -> Tensor:
        matrix, bias = getattr(part, name), getattr(part, f"{name}_bias")
        y: Tensor = rows @ matrix[e].detach().double().T
        return y if bias is None else y + bias[e].detach().double()

    up = product("up", x)
    neurons = ops.gate(up, None, part.spec.act) if part.gate is None else ops.gate(product("gate", x), up, part.spec.act)
    return product("down", neurons)


def every_expert(part: Moe, x: Tensor, shares: Tensor) -> Tensor:
    """Run every expert on every row of x [T D], and add them up by shares [T E]."""
    made = (shares[:, e, None] * expert_rows(part, x, e) for e in range(part.spec.experts))
    return torch.stack(list(made)).sum(0)


def chosen_experts(part: Moe, x: Tensor, shares: Tensor) -> Tensor:
    """Run each expert on the rows of x [T D] that have a share of it [T E], and add them up."""
    out = torch.zeros_like(x)
    for e in range(part.spec.experts):
        rows = shares[:, e].nonzero().flatten()
        out.index_add_(0, rows, shares[rows, e, None] * expert_rows(part, x[rows], e))
    return out


def routed(run: Trace) -> EqualPair:
    """Run the chosen experts alone, or all with a share of 0 for the others; the case: every expert has the share of its score."""
    path = f"layers.{sparse(run.runner.config)[0]}.ffn"
    part: Moe = run.runner.module.get_submodule(path)
    x = recorded(run, run.all(f"{path}.routed")[0].inputs[0])
    affinity, share = recorded(run, f"{path}.affinity"), recorded(run, f"{path}.share")
    chosen = run.all(f"{path}.chosen")[0].value[0]
    shares = torch.zeros_like(affinity).scatter(-1, chosen, share)
    one, all_shares = chosen_experts(part, x, shares), affinity / affinity.sum(-1, keepdim=True)
    numbers = {"rows": chosen.numel(), "all": affinity.numel()}
    return EqualPair(one, every_expert(part, x, shares), (one, every_expert(part, x, all_shares)), numbers)


def drawn(shape: tuple[int, int], size: float, seed: int, like: Tensor) -> Tensor:
    """Draw a matrix of numbers of this size."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return size * values.to(like.device)


def merged(run: Trace) -> EqualPair:
    """Multiply by a matrix and a thin pair beside it, or by their sum; the case: all of them in bfloat16, which rounds the sum."""
    part, x = attention(run), recorded(run, reads(run, ATTN))
    w, _ = weights(getattr(part, query_name(part)))
    a, b = drawn((RANK, w.shape[1]), RANK**-0.5, 0, w), drawn((len(w), RANK), float(w.std()) / FINE, 1, w)
    one, other = x @ w.T + (x @ a.T) @ b.T, x @ (w + b @ a).T
    w, a, b = (rounded(m) for m in (w, a, b))
    total = rounded(w + b @ a)
    case = x @ w.T + (x @ a.T) @ b.T, x @ total.T
    return EqualPair(one, other, case, {"rank": RANK, "unmoved": 100 * float((total == w).double().mean())})


def rounded(w: Tensor) -> Tensor:
    """Return the numbers that bfloat16 has nearest to those of w."""
    return w.bfloat16().double()


def averaged(run: Trace) -> EqualPair:
    """Average the losses of all tokens, or sum them in two parts and divide once; the case: the average of both parts' averages."""
    logits = run.all("logits")[0].value[0].double()
    losses = F.cross_entropy(logits[:-1], torch.tensor(run.ids[1:], device=logits.device), reduction="none")
    first, rest = losses[:1], losses[1:]
    one, other = losses.mean()[None], ((first.sum() + rest.sum()) / len(losses))[None]
    return EqualPair(one, other, (one, (first.mean() + rest.mean())[None] / 2), {"first": len(first), "rest": len(rest)})


def is_small(model: Model) -> bool:
    """True if a model has few, plain numbers."""
    return model.quant is None and model.num_parameters() < SMALL


def folds(model: Model) -> bool:
    """True if the norm before the first block's attention has a weight."""
    layer = model.config.layers[0]
    return layer.order == "pre" and hasattr(NORMS[model.config.norm], "gain")


def routes(model: Model) -> bool:
    """True if a block has experts whose outputs are multiplied by their shares."""
    specs: Iterator[Any] = (layer.ffn for layer in model.config.layers if layer.ffn.experts)
    return is_small(model) and all(not spec.share_first and spec.near is None for spec in specs) and bool(sparse(model.config))


REWRITES: Sequence[Reason] = (
    Reason("norm", "W·(g ∘ n) = (W·diag g)·n", folded, folds),
    Reason("tied", "∂E = ∂E₁ + ∂E₂", tied, lambda m: m.config.tied and is_small(m)),
    Reason("experts", "Σ g·E(x) = Σ g·E(x) + 0·E′(x)", routed, routes, "pellucid/capitals-deepseek"),
    Reason("merged", "W·x + B·(A·x) = (W + B·A)·x", merged),
    Reason("loss", "Σ / n = (Σ₁ + Σ₂) / n", averaged),
)
