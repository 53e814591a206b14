"""Random models of every family and every order of norms, with their recorded runs."""

from dataclasses import replace
from typing import Any

import pellucid
from pellucid import config as c
from pellucid.api.model import Model
from pellucid.tracing import Trace
from tiny import FAMILIES, GPT2, LLAMA, MLA, T5, tiny

HEARS = replace(T5, starts=1)
BLOOM = replace(GPT2, embed_norm=True, positions=None)
SANDWICH = replace(LLAMA, norm="rms offset", layers=tuple(replace(one, order="sandwich") for one in LLAMA.layers), logit_cap=5.0)
POST = replace(GPT2, layers=tuple(replace(one, order="post") for one in GPT2.layers), final_norm=False, embed_scale=3.0)
BOTH = replace(GPT2, norm="layer, no bias", layers=tuple(replace(one, order="parallel") for one in GPT2.layers), head_bias=True)
NARROW = replace(GPT2, embed_width=16, logit_scale=0.25)
FILLS = replace(
    GPT2, layers=tuple(replace(one, attn=replace(one.attn, causal=False), order="post") for one in GPT2.layers), transform="gelu",
    final_norm=False, head_bias=True, embed_norm=True, types=2,
)  # fmt: skip
KINDS: dict[str, c.Config] = FAMILIES | {
    "t5": HEARS, "bloom": BLOOM, "sandwich": SANDWICH, "post": POST, "parallel": BOTH, "narrow": NARROW, "fills": FILLS,
}  # fmt: skip
IDS = [5, 3, 80, 17, 2, 44]

# What none of these has.
ODD: dict[str, c.Config] = {
    "alibi": replace(BLOOM, layers=tuple(replace(one, attn=replace(one.attn, alibi=c.Alibi(0.5))) for one in GPT2.layers)),
    "distances": replace(LLAMA, layers=tuple(replace(one, attn=replace(one.attn, distances=True)) for one in LLAMA.layers)),
    "capped": replace(LLAMA, layers=tuple(replace(one, attn=replace(one.attn, cap=2.0, window=3)) for one in LLAMA.layers)),
    "indexed": replace(LLAMA, layers=(c.Layer(replace(MLA, q_rank=None, index=c.Index(2, 16, 3)), LLAMA.layers[0].ffn),) * 2),
    "weighted": replace(
        LLAMA,
        layers=(
            c.Layer(
                replace(LLAMA.layers[0].attn, qk_rms=True, temper=c.Temper(2, 0.3), chunk=4),
                c.Moe(4, 1, 16, shared=16, corrected=False, normalised=False, share_first=True),
            ),
        ) * 2,
    ),
    "bare": replace(GPT2, sinusoids=True, positions=None, layers=tuple(replace(one, order="bare") for one in GPT2.layers)),
    "thin": replace(
        LLAMA,
        layers=tuple(replace(one, ranks=(("attn.q", 4), ("attn.o", 5), ("ffn.up", 6), ("ffn.down", 7))) for one in LLAMA.layers),
    ),
}  # fmt: skip


def lived(cfg: c.Config, steps: int = 1, **how: Any) -> tuple[Model, Trace]:
    """A random model of a config, and its run over a few tokens."""
    model = Model("tiny", tiny(cfg), None, {}, None)  # type: ignore[arg-type]
    return model, pellucid.trace(model, IDS, steps, **how)
