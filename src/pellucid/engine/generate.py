"""Generation: a few requests through one forward a step, each on pages of its own, until all have stopped.

One request of a decoder goes through `decode.Decode`, which replays its step; a crowd, and encoder-decoders, run the forward itself.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from pellucid.engine.decode import Decode
from pellucid.errors import UseError
from pellucid.models import Decoder, Encoder, EncoderDecoder
from pellucid.ops.sample import pick
from pellucid.past import Pages
from pellucid.sight import Sight, prefix
from pellucid.step import Step
from pellucid.watching import watch

PAGE = 64  # rows a page


def generate(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    new: int,
    temperature: float = 0.0,
    stops: Sequence[int] = (),
    seed: int | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> Iterator[list[int | None]]:
    """Step by step, the next token of each prompt, None where it has stopped; a stop token is the last one of its request.

    temperature 0 takes the likeliest.  seed: draws of each request are its own, whoever else runs.  sources: an encoder's tokens.
    """
    check(module, prompts, new, temperature, sources)
    draws = [torch.Generator().manual_seed(seed + i) if seed is not None else None for i in range(len(prompts))]
    alone = len(prompts) == 1 and isinstance(module, Decoder) and next(module.parameters()).device.type == "cpu"
    run = one(module, prompts[0], new) if alone and isinstance(module, Decoder) else crowd(module, prompts, new, sources)
    alive: list[int] = list(range(len(prompts)))
    if not new or not prompts:
        return
    logits, written = next(run), [list(p) for p in prompts]
    for left in range(new, 0, -1):
        if not bool((tops := logits.amax(-1)).isfinite().all()):  # else argmax would take a NaN's place for a token
            at = tops.isfinite().tolist().index(False)
            told = written[alive[at]], None if sources is None else sources[alive[at]]
            raise UseError("generate.finite", request=alive[at], step=new - left, found=float(tops[at]), path=broken(module, *told))
        with torch.no_grad():
            tokens = [int(pick(row[None], temperature, draws[i])) for i, row in zip(alive, logits, strict=True)]
        out: list[int | None] = [None] * len(prompts)
        for i, token in zip(alive, tokens, strict=True):
            out[i] = token
            written[i].append(token)
        yield out
        feed = {i: t for i, t in zip(alive, tokens, strict=True) if t not in stops}
        alive = list(feed)
        if not alive or left == 1:
            return
        logits = run.send(feed)


Run = Generator[Tensor, dict[int, int], None]


def broken(module: Decoder | EncoderDecoder, ids: Sequence[int], source: Sequence[int] | None = None) -> str:
    """The first tensor of a forward over these ids that holds NaN or an infinity; "-" where there is none."""
    given = [torch.tensor([list(t)], device=next(module.parameters()).device) for t in (source, ids) if t is not None]
    with torch.no_grad(), watch(module, keep=lambda x: bool(x.isfinite().all())) as seen:
        module(*given)
    return next((s.path for s in seen if not s.value), "-")


def one(module: Decoder, prompt: Sequence[int], new: int) -> Run:
    """Gives the last logits [1 V], and takes {0: token}."""
    decode = Decode(module, len(prompt) + new)
    logits = decode.start(prompt)
    while True:
        fed = yield logits[None]
        logits = decode.step(fed[0])


def crowd(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    new: int,
    sources: Sequence[Sequence[int]] | None = None,
    every: bool = False,
) -> Run:
    """Gives the last logits [requests V] of those that live, and takes {request: token}; one forward a step.

    every: the model computes the logits of all rows, for whoever watches them.
    """
    pages = Pages(sum(-(-(len(p) + new) // PAGE) for p in prompts), PAGE)
    pages.budget = {i: len(p) + new for i, p in enumerate(prompts)}
    device = next(module.parameters()).device

    def forward(chunks: dict[int, list[int]], sight: Sight | None = None) -> Tensor:
        step = Step.paged(pages, {i: len(c) for i, c in chunks.items()})
        last = torch.tensor([s.stop - 1 for s in step.spans])
        step.wanted, step.sight = None if every else last, sight
        tokens = torch.tensor([[t for c in chunks.values() for t in c]], device=device)
        with torch.no_grad():
            if isinstance(module, Decoder):
                logits = module(tokens, step)
            else:
                told = sources if sources is not None and not pages.memory else None
                rows = None if told is None else torch.tensor([[t for s in told for t in s]], device=device)
                logits = module(rows, tokens, step, None if told is None else Step.packed([len(s) for s in told]))
        step.advance()
        return logits[0, last] if every else logits[0]  # type: ignore[no-any-return]

    if module.config.prefix:  # what a prompt's rows see depends on its length: a forward each
        fed = yield torch.cat([forward({i: list(p)}, prefix(len(p))) for i, p in enumerate(prompts)])
    else:
        fed = yield forward({i: list(p) for i, p in enumerate(prompts)})
    while True:
        for request in list(pages.tables.keys() - fed.keys()):
            pages.release(request)
        fed = yield forward({i: [t] for i, t in fed.items()})


def check(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    new: int,
    temperature: float,
    sources: Sequence[Sequence[int]] | None,
) -> None:
    """Refuse what no forward could answer: ids outside the vocabulary, an empty prompt, a text longer than the positions."""
    if isinstance(module, Encoder):
        raise UseError("generate.encoder")
    if type(new) is not int or new < 0:
        raise UseError("generate.new", found=new)
    if not isinstance(temperature, int | float) or not 0.0 <= temperature < float("inf"):
        raise UseError("generate.temperature", found=temperature)
    for name, texts in (("prompt", prompts), ("source", sources or ())):
        for i, text in enumerate(texts):
            if not len(text):
                raise UseError("generate.empty", name=f"{name}[{i}]")
            check_ids(text, module.config.vocab)
            rows = module.config.positions
            if rows is not None and len(text) + new > rows:
                raise UseError("generate.context", tokens=len(text), new=new, rows=rows)


def check_ids(ids: Sequence[int], vocab: int) -> None:
    """Every id lies in the vocabulary."""
    for i in ids:
        if not isinstance(i, SupportsIndex) or not 0 <= i.__index__() < vocab:
            raise UseError("decode.id", id=i, last=vocab - 1)
