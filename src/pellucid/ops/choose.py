"""The choice of a row's keys: small heads score every key, each row keeps the best (DeepSeek Sparse Attention, arXiv 2512.02556).

There is only the reference, which saves no work: attention runs over all keys, and a mask leaves the chosen ones.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import Mask, conditions_of
from pellucid.ops.experts import TOP
from pellucid.ops.kinds import OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import in_segment, note, tap
from pellucid.watching.terms import Index, Terms

INDEX = OpKind(
    "index",
    lambda m: f"Σ_H {m.inputs[1]} · max({m.inputs[0]}·{m.inputs[2]}ᵀ, 0) / √(H·K)",
    labels={"weights": lambda m: m.inputs[1], "match": lambda m: f"max({m.inputs[0]}·{m.inputs[2]}ᵀ, 0)", "scale": lambda m: "1/√(H·K)"},
)


def choose(q: Tensor, weights: Tensor, kv_cache: KVCache, mask: Mask, most: int) -> list[Tensor]:
    """Choose at most `most` allowed keys for each row, from q [B T H K], weights [B T H] and keys [B S K].

    Returns a bool tensor [B T S] for each segment. A score is the sum over heads of weight · max(q · k, 0) / √(H·K); of equal scores the
    earlier key wins. FLOPs: 2·H·(K + 1) a pair.
    """
    w, scale = wide(q.dtype), (q.shape[2] * q.shape[3]) ** -0.5
    out = []
    for segment in kv_cache.segments:
        with in_segment(segment):
            (k,) = segment.read()
            rows, counts = q[:, segment.rows].to(w), weights[:, segment.rows].to(w) * scale
            match = torch.einsum("bthk,bsk->bths", rows, k.to(w)).relu()
            scores = torch.einsum("bth,bths->bts", counts, match)

            def terms(i: Index, segment: Segment = segment, match: Tensor = match) -> Terms:
                return Terms(weights=weights[:, segment.rows][i[:2]], match=match[i[0], i[1], :, i[2]], scale=scale)

            flops = 2 * scores.numel() * q.shape[2] * (q.shape[3] + 1)
            scores = tap(note(scores, INDEX.name, (q, weights, *kv_cache.new), (), terms, flops), "scores: B T S")
            allowed = mask.materialize(segment.q_at, segment.k_at)[0][:, 0]
            best = torch.where(allowed, scores, float("-inf")).sort(stable=True, dim=-1, descending=True)[1][..., :most]
            chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & allowed

            def kept(i: Index, scores: Tensor = scores, chosen: Tensor = chosen, allowed: Tensor = allowed) -> Terms:
                return Terms(chosen=chosen[i].double()).of(score=scores[i], allowed=allowed.expand_as(scores)[i])

            settings = partial(dict[str, Any], chosen=most, mask=conditions_of(mask.allowed))
            out.append(tap(note(chosen, TOP.name, (scores,), (), kept, settings=settings), "chosen: B T S"))
    return out
