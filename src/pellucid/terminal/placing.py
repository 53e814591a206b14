"""Where a model's order of words comes from and which heads share keys, as sentences: what no weight's name says by itself."""

from collections.abc import Iterator, Sequence

from pellucid.api.model import Model
from pellucid.config import Attention, Config, Latent, Layer
from pellucid.documents.number import count
from pellucid.messages import say

RELATIVE = "rope", "buckets", "alibi", "distances"  # fields of an attention that place its rows


def sentences(model: Model) -> Iterator[str]:
    """Yield where positions enter, which heads share keys and values, and what shows both as they run."""
    cfg = model.config
    layers = [*(cfg.encoder or ()), *cfg.layers]
    yield from placed(cfg, layers) or [say("show.positions.none")]
    attends = [layer.attn for layer in layers if isinstance(layer.attn, Attention | Latent)]
    yield from dict.fromkeys(map(sharing, attends))
    if attends:
        turned = cfg.encoder is None and any(one.rope is not None for one in attends)
        yield say("show.more", exhibits=", ".join((*(["turns"] if turned else []), "places", "kinds")))


def placed(cfg: Config, layers: Sequence[Layer]) -> list[str]:
    """Return a sentence for each kind of positions that a model has."""
    out = []
    if cfg.positions is not None:
        out.append(say("show.positions.sines" if cfg.sinusoids else "show.positions.table", rows=count(cfg.positions)))
    for name in RELATIVE:
        blocks = sum(bool(getattr(layer.attn, name, None)) for layer in layers)
        if blocks:
            out.append(say(f"show.positions.{name}", blocks=blocks, of=len(layers)))
    return out


def sharing(attn: Attention | Latent) -> str:
    """Return the sentence about one attention's heads."""
    if isinstance(attn, Latent):
        return say("show.heads.latent", heads=attn.heads, latent=attn.kv_rank, turned=attn.rope.width)
    if attn.heads == attn.kv_heads:
        return say("show.heads.own", heads=attn.heads)
    each = attn.heads // attn.kv_heads
    return say("show.heads.groups", heads=attn.heads, keys=attn.kv_heads, each=each, last=each - 1)
