"""The check that a model's rows have the same bits in any batch, before an engine promises it.

The model's own layers, the first of each kind, read a few short texts together, alone and in small chunks. A torch op that computes
numbers, and does not only move them, is an obstacle: the order of its sums may depend on the number of rows. Then every logit must be the
same, bit for bit.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.plain_rows import PLAIN, PlainRows
from pellucid.engine.forward import Forward
from pellucid.engine.requests import Request
from pellucid.engine.requests import Sequence as Text
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, EncoderDecoder, Stack
from pellucid.ops import native
from pellucid.watching.tap import seen_by

LENGTHS, NEW = (21, 9, 14), 3  # tokens of the texts; together more rows than the kernels of few rows take
MIXES = ((64, True, 16), (64, False, 5), (3, True, 4))  # rows a step of a text, True for all at once, rows a page
# Ops that move numbers, or round each by itself.
MOVES = {"_to_copy", "cat", "clone", "copy_", "embedding", "empty", "empty_strided", "gather", "index", "index_copy_", "index_select",
         "lift_fresh", "mul", "neg", "new_zeros", "relu", "stack", "zeros"}  # fmt: skip
PASSED: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()  # the state in which a model passed


def require(module: Decoder | EncoderDecoder, format: PlainRows = PLAIN) -> None:
    """Raise UseError, which names the obstacle, if a row's bits may depend on its batch with this model, dtype or machine.

    format: of the keys and values.
    """
    state = module.edition, format, native.instructions(), next(module.parameters()).dtype, next(module.parameters()).device
    if PASSED.get(module) == state:
        return
    if (why := reason(module, format)) is not None:
        raise UseError("determinism.refused", why=why)
    PASSED[module] = state


def reason(module: Decoder | EncoderDecoder, format: PlainRows = PLAIN) -> str | None:
    """Return the obstacle, None if there is none."""
    if not native.available():
        return str(UseError("determinism.kernels"))
    short = shortened(module)
    with seen_by(), torch.no_grad():
        texts = list(prompts(module))
        try:
            read(short, texts, *MIXES[0], format)  # fills the caches of a process first
            with Numbers():
                first, *others = [read(short, texts, *mix, format) for mix in MIXES]
        except NumbersError as error:
            return str(error)
    same = all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    return None if same else str(UseError("determinism.bits"))


class NumbersError(UseError):
    """A torch op has computed numbers."""


class Numbers(TorchDispatchMode):
    """A mode that raises NumbersError for every torch op that computes floating point numbers; other dtypes have no rounding."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch's compiler, for a second

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
    """Return the same model with only the first layer of each kind; it shares the weights."""
    short: Decoder | EncoderDecoder = copied(module)
    if isinstance(short, EncoderDecoder):
        assert isinstance(module, EncoderDecoder) and module.config.encoder is not None
        short.encoder, short.decoder = cut(module.encoder, module.config.encoder), cut(module.decoder, module.config.layers)
        return short
    decoder: Decoder = cut(short, module.config.layers)
    return decoder


def copied(module: Any) -> Any:
    """Return a copy of a module with the same parts, which may be exchanged."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made


def cut(stack: Any, layers: tuple[object, ...]) -> Any:
    """Return a stack of one layer of each kind, by its config and by the classes, dtypes and devices in it."""
    kinds: dict[object, nn.Module] = {}
    for spec, layer in zip(layers, stack.layers, strict=True):
        made = tuple(type(m) for m in layer.modules()), tuple((type(p), p.dtype, p.device) for p in layer.parameters())
        kinds.setdefault((spec, made), layer)
    short: Stack = copied(stack)
    short.layers = nn.ModuleList(kinds.values())
    return short


def prompts(module: Decoder | EncoderDecoder) -> Iterator[Request]:
    """Yield a few requests with different tokens. A prefix model's are not scored, since a scored text has no prefix."""
    vocab, most = module.config.vocab, (module.config.positions or 2**20) - NEW

    def ids(n: int) -> tuple[int, ...]:
        return tuple((n * 7919 + i * 104729) % vocab for i in range(max(1, min(n, most))))

    for n in LENGTHS:
        has_encoder = isinstance(module, EncoderDecoder)
        yield Request(ids(n), NEW, scored=not module.config.prefix, source=ids(n + 2) if has_encoder else None)


def read(
    module: Decoder | EncoderDecoder, requests: list[Request], rows: int, together: bool, size: int, format: PlainRows = PLAIN
) -> list[Tensor]:
    """Return the logits of each text's steps, [rows V]; its tokens after the prompt are fixed.

    rows: of a step and text.  together: all texts in one batch, else one after another.  size: rows a page, in this format.
    """
    texts = [Text(i, 0, r, list(r.prompt)) for i, r in enumerate(requests)]
    logits_of: list[list[Tensor]] = [[] for _ in texts]
    for batch in [texts] if together else [[t] for t in texts]:
        pages = PagedCache(sum(-(-t.request.budget // size) for t in batch), size, format=format, device=next(module.parameters()).device)
        forward = Forward(module, pages, deterministic=True)
        for t in batch:
            pages.angle_length[t.key] = len(t.request.prompt)
        while chunks := next_chunks(batch, rows, module.config.whole_prompts):
            for t, logits in forward(chunks).items():
                logits_of[t.number].append(logits.clone())
                t.stored += chunks[t]
                if not t.pending and t.written < NEW:
                    t.tokens.append((t.number + t.written) % module.config.vocab)
    return [torch.cat(each) for each in logits_of]


def next_chunks(texts: list[Text], rows: int, prefix: bool) -> dict[Text, int]:
    """Choose a step's rows: up to `rows` of each text, or one text's whole prompt where its tokens attend in both directions."""
    chunks: dict[Text, int] = {}
    for t in texts:
        uncut = prefix and not t.stored
        if t.pending and not (uncut and any(n > 1 for n in chunks.values())):
            chunks[t] = t.pending if uncut else min(rows, t.pending)
    return chunks
