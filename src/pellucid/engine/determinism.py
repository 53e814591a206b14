"""Whether a row has the same bits in any company: asked of a model before an engine promises it.

The model's own layers, the first of each kind, read a few short texts together, alone and in small chunks. A torch op on the way that
makes numbers and does not only move them is a reason to refuse: the order of its sums may go by how many rows there are. Then every
logit must be the same, bit for bit.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.batch.kv_cache import PagedCache
from pellucid.engine.forward import Forward
from pellucid.engine.requests import Request
from pellucid.engine.requests import Sequence as Text
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, EncoderDecoder, Stack
from pellucid.ops import native
from pellucid.watching.tap import seen_by

LENGTHS, NEW = (21, 9, 14), 3  # tokens of the texts that are read; together more rows than the kernels of few rows take
MIXES = ((64, True, 16), (64, False, 5), (3, True, 4))  # rows a step of a text, whether all at once, rows a page
# What moves numbers, or rounds each once for itself.
MOVES = {"_to_copy", "cat", "clone", "copy_", "embedding", "empty", "empty_strided", "gather", "index", "index_copy_", "index_select",
         "lift_fresh", "mul", "neg", "new_zeros", "relu", "stack", "zeros"}  # fmt: skip
held: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()  # the state in which a model was found to hold


def require(module: Decoder | EncoderDecoder) -> None:
    """Refuse a model, a dtype or a machine where rows would have other bits in other company: the error names what is in the way."""
    state = module.edition, native.instructions(), next(module.parameters()).dtype, next(module.parameters()).device
    if held.get(module) == state:
        return
    if (why := reason(module)) is not None:
        raise UseError("determinism.refused", why=why)
    held[module] = state


def reason(module: Decoder | EncoderDecoder) -> str | None:
    """What is in the way; None where nothing is."""
    if not native.available():
        return str(UseError("determinism.kernels"))
    short = shortened(module)
    with seen_by(), torch.no_grad():
        texts = list(prompts(module))
        try:
            read(short, texts, *MIXES[0])  # what is made once a process is made here
            with Numbers():
                first, *others = [read(short, texts, *mix) for mix in MIXES]
        except NumbersError as error:
            return str(error)
    same = all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    return None if same else str(UseError("determinism.bits"))


class NumbersError(UseError):
    """A torch op has made numbers."""


class Numbers(TorchDispatchMode):
    """Refuses every torch op that makes numbers; integers and truth values have no rounding."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch's compiler is imported, for a second

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in MOVES:
            for t in out if isinstance(out, tuple | list) else (out,):
                if isinstance(t, Tensor) and t.is_floating_point():
                    raise NumbersError("determinism.op", op=str(func), dtype=str(t.dtype).removeprefix("torch."), device=str(t.device))
        return out


def shortened(module: Decoder | EncoderDecoder) -> Decoder | EncoderDecoder:
    """The same model, its weights shared, with the first layer of each kind alone."""
    short: Decoder | EncoderDecoder = again(module)
    if isinstance(short, EncoderDecoder):
        assert isinstance(module, EncoderDecoder) and module.config.encoder is not None
        short.encoder, short.decoder = cut(module.encoder, module.config.encoder), cut(module.decoder, module.config.layers)
        return short
    decoder: Decoder = cut(short, module.config.layers)
    return decoder


def again(module: Any) -> Any:
    """A module with the same parts, which may be exchanged."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made


def cut(stack: Any, layers: tuple[object, ...]) -> Any:
    """A stack of one layer of each kind: by its config, by what its parts are and by what their weights are."""
    kinds: dict[object, nn.Module] = {}
    for spec, layer in zip(layers, stack.layers, strict=True):
        made = tuple(type(m) for m in layer.modules()), tuple((type(p), p.dtype, p.device) for p in layer.parameters())
        kinds.setdefault((spec, made), layer)
    short: Stack = again(stack)
    short.layers = nn.ModuleList(kinds.values())
    return short


def prompts(module: Decoder | EncoderDecoder) -> Iterator[Request]:
    """A few texts, each with other tokens; of a prefix model unscored, since a scored text is read as if it had none."""
    vocab, most = module.config.vocab, (module.config.positions or 2**20) - NEW

    def ids(n: int) -> tuple[int, ...]:
        return tuple((n * 7919 + i * 104729) % vocab for i in range(max(1, min(n, most))))

    for n in LENGTHS:
        has_encoder = isinstance(module, EncoderDecoder)
        yield Request(ids(n), NEW, scored=not module.config.prefix, source=ids(n + 2) if has_encoder else None)


def read(module: Decoder | EncoderDecoder, requests: list[Request], rows: int, together: bool, size: int) -> list[Tensor]:
    """The logits of all that each text's steps tell, [rows V], tokens after the prompt being given."""
    texts = [Text(i, 0, r, list(r.prompt)) for i, r in enumerate(requests)]
    got: list[list[Tensor]] = [[] for _ in texts]
    for batch in [texts] if together else [[t] for t in texts]:
        pages = PagedCache(sum(-(-t.request.budget // size) for t in batch), size)
        forward = Forward(module, pages, deterministic=True)
        for t in batch:
            pages.together[t.key] = len(t.request.prompt)
        while chunks := brought(batch, rows, module.config.prefix):
            for t, logits in forward(chunks).items():
                got[t.number].append(logits.clone())
                t.stored += chunks[t]
                if not t.pending and t.written < NEW:
                    t.tokens.append((t.number + t.written) % module.config.vocab)
    return [torch.cat(g) for g in got]


def brought(texts: list[Text], rows: int, prefix: bool) -> dict[Text, int]:
    """A step's rows: so many of each, or the whole prompt of one where its tokens see each other both ways."""
    chunks: dict[Text, int] = {}
    for t in texts:
        whole = prefix and not t.stored
        if t.pending and not (whole and any(n > 1 for n in chunks.values())):
            chunks[t] = t.pending if whole else min(rows, t.pending)
    return chunks
