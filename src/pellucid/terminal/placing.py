"""Where a model's order of words comes from and which heads share keys, as sentences: what no weight's name says by itself."""

from collections.abc import Callable, Iterator, Sequence

from pellucid.api.model import Model
from pellucid.config import AnyAttention, Config, Layer
from pellucid.documents.number import count
from pellucid.messages import say

RELATIVE: dict[str, Callable[[int, int], str]] = {  # fields of an attention that place its rows, and the sentence about `blocks` of `of`
    "rope": lambda blocks, of: say("show.positions.rope", blocks=blocks, of=of),
    "buckets": lambda blocks, of: say("show.positions.buckets", blocks=blocks, of=of),
    "alibi": lambda blocks, of: say("show.positions.alibi", blocks=blocks, of=of),
    "distances": lambda blocks, of: say("show.positions.distances", blocks=blocks, of=of),
}


def sentences(model: Model) -> Iterator[str]:
    """Yield where positions enter, which heads share keys and values, and what shows both as they run."""
    cfg = model.config
    layers = [*(cfg.encoder or ()), *cfg.layers]
    yield from position_lines(cfg, layers) or [say("show.positions.none")]
    attends = [layer.attn for layer in layers if layer.attn.heads]
    yield from dict.fromkeys(map(sharing, attends))
    if attends:
        rotary = cfg.encoder is None and any(getattr(one, "rope", None) is not None for one in attends)
        yield say("show.more", exhibits=", ".join((*(["turns"] if rotary else []), "places", "kinds")))


def position_lines(cfg: Config, layers: Sequence[Layer]) -> list[str]:
    """Return a sentence for each kind of positions that a model has."""
    out = []
    if cfg.positions is not None:
        rows = count(cfg.positions)
        out.append(say("show.positions.sines", rows=rows) if cfg.sinusoids else say("show.positions.table", rows=rows))
    for name, sentence in RELATIVE.items():
        blocks = sum(bool(getattr(layer.attn, name, None)) for layer in layers)
        if blocks:
            out.append(sentence(blocks, len(layers)))
    return out


def sharing(attn: AnyAttention) -> str:
    """Return the sentence about one attention's heads."""
    if (latent := getattr(attn, "kv_rank", None)) is not None:
        return say("show.heads.latent", heads=attn.heads, latent=latent, turned=attn.rope.width)  # type: ignore[union-attr]
    keys: int = getattr(attn, "kv_heads", attn.heads)
    each = attn.heads // keys
    if each == 1:
        return say("show.heads.own", heads=attn.heads)
    return say("show.heads.groups", heads=attn.heads, keys=keys, each=each, last=each - 1)
