"""Variants of a model: another kind of attention, or experts. A variant is another Config, counted like any other.

with_attention(cfg, "gqa:8")        every layer's keys and values in 8 groups
with_attention(cfg, "mla:512")      one latent of 512 and a rotary key, half as wide as a head, are stored (arXiv 2405.04434)
with_experts(cfg, "64:8")           64 experts, 8 of them chosen
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from pellucid.config import AnyAttention, AnyFfn, Attention, Config, Layer, Mlp, Moe, Without
from pellucid.counting import Bill, add_cache
from pellucid.counting.distinct import distinct
from pellucid.counting.meta_run import ran
from pellucid.errors import UseError

GROUPS = 8  # of most models with GQA


def kinds(cfg: Config) -> str:
    """Return the kinds of attention of a model's layers."""
    return ", ".join(dict.fromkeys(mixer.kind for layer in cfg.layers for mixer in layer.mixers))


def with_attention(cfg: Config, text: str) -> Config:
    """Return a model with every layer's attention of one kind: "mha", "mqa", "gqa:G" or "mla:C". A convolution in its place stays.

    A UseError if a layer has no such form.
    """
    match = re.fullmatch(r"(mha|mqa)|gqa:(\d{1,9})|mla(?::(\d{1,9}))?", text.lower())
    if match is None or "0" in match.groups():
        raise UseError("count.attn", found=text)
    plain, groups, latent = match.groups()
    if plain is None and groups is None:
        rank = None if latent is None else int(latent)

        def compressed(attn: AnyAttention) -> AnyAttention:
            if not attn.heads:
                return attn
            if (made := attn.as_latent(rank)) is None:
                raise UseError("count.attn.latent", found=text)
            return made

        return replace(cfg, layers=tuple(replace(one, attn=compressed(one.attn)) for one in cfg.layers))

    def heads(attn: AnyAttention) -> Attention:
        n = attn.heads if plain == "mha" else 1 if plain == "mqa" else int(groups)
        if attn.heads % n:
            allowed = ", ".join(str(g) for g in range(1, attn.heads + 1) if attn.heads % g == 0)
            raise UseError("count.attn.groups", found=text, heads=attn.heads, allowed=allowed)
        if (made := attn.as_heads(n)) is None:
            raise UseError("count.attn.heads", found=text, kind=attn.kind)
        return made

    def changed(one: Layer) -> Layer:
        return replace(one, attn=heads(one.attn) if one.attn.heads else one.attn, cross=heads(one.cross) if one.cross else None)

    encoder = None if cfg.encoder is None else tuple(changed(one) for one in cfg.encoder)
    return replace(cfg, layers=tuple(changed(one) for one in cfg.layers), encoder=encoder)


def with_experts(cfg: Config, text: str) -> Config:
    """Return a model with N experts of which A are chosen ("N:A"); a dense MLP becomes one expert, 2 chosen, behind a softmax."""
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)
    if match is None:
        raise UseError("count.experts", found=text)
    n, chosen = int(match[1]), int(match[2] or 0)
    sparse = any(one.ffn.experts for one in cfg.layers)

    def changed(ffn: AnyFfn) -> AnyFfn:
        if isinstance(ffn, Without):
            return ffn
        if isinstance(ffn, Mlp):
            made = ffn if sparse else Moe(n, chosen or min(2, n), ffn.width, affinity="softmax", corrected=False, act=ffn.act)
        else:
            made = replace(ffn, experts=n, chosen=chosen or ffn.chosen)
        if isinstance(made, Moe):
            in_reach = made.groups_chosen * (n // made.groups)
            if not 1 <= made.chosen <= n or n % made.groups or made.chosen > in_reach:
                raise UseError("count.experts.range", found=text, groups=made.groups, chosen=made.groups_chosen)
        return made

    return replace(cfg, layers=tuple(replace(one, ffn=changed(one.ffn)) for one in cfg.layers))


def other_kinds(bill: Bill) -> Iterator[tuple[str, Bill]]:
    """Yield (kind, bill of the cache) of a model as it is, and with each other kind of attention that it can have."""
    heads = bill.config.heads
    split = [one.attn for one in bill.config.layers if one.attn.kv_heads is not None]
    own = {attn.kv_heads for attn in split}
    groups = next((g for g in own if 1 < g < heads), GROUPS if heads % GROUPS == 0 and heads > GROUPS else None)
    yield kinds(bill.config), bill
    latents = [made for attn in split if (made := attn.as_latent(None)) is not None]
    widest = max(latents, key=lambda latent: latent.kv_rank, default=None)
    settings = {"MHA": "mha", f"GQA {groups}": f"gqa:{groups}" if groups else None, "MQA": "mqa"}
    if widest is not None:
        own_dtype = f" {bill.setting.cache}" if bill.setting.kv else ""  # no engine keeps a latent in int8
        settings[f"MLA {widest.kv_rank}+{widest.rope.width}{own_dtype}"] = "mla"
    for name, text in settings.items():
        other = tried(bill.config, text) if text else None
        if other is not None and [one.attn for one in other.layers] != [one.attn for one in bill.config.layers]:
            yield name, cache_of(other, bill)


def tried(cfg: Config, text: str) -> Config | None:
    """Return a model with another kind of attention, None if it cannot have it."""
    try:
        return with_attention(cfg, text)
    except UseError:
        return None


def cache_of(cfg: Config, like: Bill) -> Bill:
    """Return a bill of a config's cache: what its parts store when they run, with the rest of the model made small."""

    def small(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(replace(one, ffn=Mlp(1)) for one in layers)

    cfg = replace(cfg, vocab=1, layers=small(cfg.layers), encoder=None if cfg.encoder is None else small(cfg.encoder))
    bill = Bill(like.model, like.family, cfg, like.setting, distinct(cfg), distinct(cfg, 2))
    s = like.setting
    add_cache(bill, ran(bill.reduced.config, 1, s.context, s.batch, s.source or s.context))
    return bill
