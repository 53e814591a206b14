"""Texts from an engine of their own: what `Model.generate` and `Model.stream` do."""

from collections.abc import Iterator
from contextlib import suppress

from pellucid.engine.engine import Engine, dtype_and_device
from pellucid.engine.memory import in_pages
from pellucid.engine.requests import Output, Request, check
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.watching.meta import need_numbers

ROWS = 2048  # of one step, which has no other requests
KEPT = 4096  # tokens: engines up to this capacity are kept, with their recorded plans


def generate(
    module: Decoder | EncoderDecoder,
    requests: list[Request],
    free: list[Engine] | None = None,
    cached: bool = False,
    deterministic: bool = False,
    draft: Decoder | None = None,
    kv: str | None = None,
) -> Iterator[Output]:
    """Yield the outputs of these requests, numbered from 0, from an engine of their own.

    free: idle engines; one that fits is taken, and a small one is put back, to keep its recorded plans.
    cached: keep the stored rows for the next cached call, since each turn of a chat begins with all turns before it. By default they are
    dropped, since a weight may change between two calls.  deterministic, draft, kv: see Engine.of.
    """
    need_numbers(module)
    for i, request in enumerate(requests):
        check(module, request, f"[{i}]")
    if not requests:
        return
    tokens, texts = sum(in_pages(module, r.budget) * r.n for r in requests), sum(r.n for r in requests)
    limits = SchedulerLimits(rows=max(ROWS, texts), running=texts, waiting=len(requests), whole_prompts=module.config.whole_prompts)
    free = [] if free is None else free
    tokens = max(tokens, KEPT) if cached else tokens  # on a CPU, zeros that are never written cost no memory
    engine = pop_idle(free, tokens, deterministic, draft, kv)
    engine = engine or Engine.of(module, tokens, limits, deterministic=deterministic, draft=draft, kv=kv)
    engine.count, engine.limits = 0, limits
    if not cached:
        engine.storage.forget()
    numbers = [engine.submit(request) for request in requests]
    try:
        for output in engine.outputs():
            if output.error is not None:
                raise output.error
            yield output
    finally:  # also if the caller stops early
        for number in numbers:
            engine.cancel(number)
        engine.receive()  # acts on the cancellations
        engine.emitted = []
        if not cached:
            engine.storage.forget()
        if engine.capacity <= KEPT:
            free.append(engine)


def pop_idle(free: list[Engine], tokens: int, deterministic: bool, draft: Decoder | None, kv: str | None = None) -> Engine | None:
    """Pop an idle engine of this mode, with this draft and format of keys and values, for `tokens` tokens. None if there is none.

    Another thread may have taken it.

    One whose weights were cast or moved since is dropped: a variant shares them with a model that may do so.
    """
    for engine in list(free):
        stale = engine.made_for != dtype_and_device(engine.module)
        own = None if engine.draft is None else engine.draft.module
        fits = engine.capacity >= tokens and engine.kv == kv
        if stale or (fits and engine.deterministic == deterministic and own is draft):
            with suppress(ValueError):
                free.remove(engine)
                if not stale:
                    return engine
    return None
