"""The engine: many requests at once through one forward a step, the only owner of time.

    engine = Engine.of(module, tokens=4096)
    number = engine.submit(Request(prompt=(5, 3, 80)))
    for output in engine.outputs():          # until nobody waits and nobody runs
        ...

A step takes what has come, lets the scheduler choose rows, runs them, and draws a token for each text whose last row was among them.
Storage, forward and random numbers are passed in, so that a simulation runs the very same steps.

Any thread may submit, cancel and close at any moment: these only note what is asked, under a lock that nobody holds for longer than
that. One thread at a time steps, and all else is its own; what was noted before a step begins holds in that step.

A step may raise anywhere: a watcher fails, memory ends, Ctrl-C. Its news is then told by the next step, and all texts that ran are
computed again from their tokens: what a text is does not depend on how often it was begun.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import isfinite
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import PagedCache, most_pages, windows_of
from pellucid.engine.determinism import require
from pellucid.engine.forward import Forward
from pellucid.engine.memory import Memory, bounds, changed
from pellucid.engine.requests import Output, Request, Sequence, Token, check, name
from pellucid.engine.scheduler import Limits, Queue, Storage, schedule
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops.sampling.stages import choose, likeliest, logprobs, top
from pellucid.ops.sampling.uniform import fresh
from pellucid.watching.tap import after
from pellucid.watching.watch import Watch, watch

PAGE = 64  # rows
ROWS = 2048  # of one step, where nobody waits for the others
KEPT = 4096  # tokens: an engine of more is not kept for its plans
Run = Callable[[Mapping[Sequence, int]], dict[Sequence, Tensor]]


@dataclass(frozen=True)
class News:
    """An output that waits to be told. length: how many tokens its text has with it."""

    text: Sequence
    output: Output
    length: int


class Engine:
    """Requests in, outputs out, one step after another.

    capacity: the most tokens that one text may come to.  admit: refuses a request that the model cannot answer.
    why: says what is wrong with a text whose logits are no numbers.
    """

    def __init__(
        self,
        run: Run,
        storage: Storage,
        limits: Limits,
        capacity: int,
        admit: Callable[[Request], None] = lambda request: None,
        why: Callable[[Sequence], str] = lambda sequence: "-",
        entropy: Callable[[], int] = fresh,
    ) -> None:
        self.run, self.storage, self.limits, self.capacity = run, storage, limits, capacity
        self.admit, self.why, self.entropy, self.choose = admit, why, entropy, choose
        self.lock, self.count, self.arrived, self.dropped, self.closed = Lock(), 0, list[Sequence](), set[int](), False
        self.line, self.news = Queue(), list[News]()
        self.torn = False  # a step has begun and not ended
        self.deterministic = False
        self.module = nn.Module()  # the watched one; a simulation has none

    @staticmethod
    def of(
        module: Decoder | EncoderDecoder,
        tokens: int,
        limits: Limits | None = None,
        size: int = PAGE,
        cached: bool = True,
        every: bool = False,
        deterministic: bool = False,
    ) -> "Engine":
        """An engine over a model's own pages, which hold `tokens` tokens in all. every: see forward.Forward.

        deterministic: a text has the same log-probabilities, bit for bit, alone and in any crowd, however its prompt is cut and whatever
        the cache holds; where the machine or the model cannot keep that it is refused, and the error names what is in the way.
        """
        if deterministic:
            require(module)
        limits, whole = replace(limits or Limits(), whole=module.config.prefix), -(-tokens // size)
        seen = {None} if every else windows_of(module)  # a watcher may ask late what a row was made of
        short = {r: min(whole, limits.running * most_pages(r, limits.rows, size)) for r in seen if r is not None}
        again = sum(-(-bound // size) for bound in bounds(module)) if every else 0  # what a text may outgrow
        pages = PagedCache(whole + again if None in seen else 0, size, short, whole * size)
        engine = Engine(
            Forward(module, pages, every, deterministic),
            Memory(module, pages, cached, every),
            limits,
            whole * size,
            lambda request: check(module, request),
            lambda s: broken(module, s.tokens, s.request.source),
        )
        engine.module, engine.deterministic = module, deterministic
        return engine

    @property
    def waiting(self) -> int:
        """Requests that have not begun, or must begin again."""
        return len(self.line.waiting) + len(self.arrived)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing: told to the thread that steps."""
        return not (self.line.running or self.waiting or self.news)

    def submit(self, request: Request) -> int:
        """Take a request into the queue: its number."""
        self.admit(request)
        if request.n > self.limits.running:
            raise UseError("engine.texts", found=request.n, most=self.limits.running)
        if request.budget > self.capacity:
            raise UseError("engine.tokens", tokens=len(request.prompt), new=request.new, most=self.capacity)
        if request.sampling.seed is None:
            request = replace(request, sampling=replace(request.sampling, seed=self.entropy()))
        with self.lock:
            if self.closed:
                raise UseError("engine.closed")
            if self.waiting >= self.limits.waiting:
                raise UseError("engine.waiting", most=self.limits.waiting)
            number, self.count = self.count, self.count + 1
            self.arrived.append(Sequence(number, 0, request, list(request.prompt), siblings=request.n - 1))
        return number

    def cancel(self, number: int) -> None:
        """End a request with the next step, wherever it is; one that has ended, or is not known yet, is left alone."""
        with self.lock:
            if number < self.count:
                self.dropped.add(number)

    def close(self) -> None:
        """End all requests with the next step, and take no more."""
        with self.lock:
            self.closed = True

    @contextmanager
    def watch(self, number: int, index: int = 0, **how: Any) -> Iterator[Watch]:
        """See one text of a request in the steps that are taken in here, as watching.watch does; its rows are cut from the crowd's.

        With `edit` it is changed, and nobody else is.
        """
        with watch(self.module, request=name(number, index), **how) as seen:
            yield seen

    def outputs(self) -> Iterator[Output]:
        """Step after step until all have ended."""
        while not self.idle:
            self.advance()
            while self.news:
                yield self.news.pop(0).output

    def step(self) -> list[Output]:
        """One forward, and the news that it brings, with that of steps which failed before it."""
        self.advance()
        told = [n.output for n in self.news]
        self.news = []
        return told

    def advance(self) -> None:
        """One forward; its news waits to be told."""
        self.receive()
        self.torn = True
        chunks = schedule(self.line, self.storage, self.limits)
        if chunks:
            logits = self.run(chunks)
            edited = changed()
            for s, rows in chunks.items():
                s.edited |= edited
                self.read(s, rows, logits[s])
        self.torn = False

    def receive(self) -> None:
        """What was asked since the last step: new texts join the queue, and those that were cancelled leave."""
        if self.torn:
            self.recover()
        self.torn = True
        with self.lock:
            dropped: Container[int] = range(self.count) if self.closed else set(self.dropped)
            self.line.waiting += self.arrived
            self.arrived = []
        for s in [s for s in (*self.line.running, *self.line.waiting) if s.number in dropped]:
            self.tell(s, *(Output(s.number, i, ended="cancelled") for i in range(s.index, s.index + s.siblings + 1)))
        with self.lock:  # only now: a step that fails before leaves all of them to the next
            self.dropped = {n for n in self.dropped if n not in dropped}
        self.torn = False

    def recover(self) -> None:
        """Make whole what a step that failed has left: its news holds, and every text that has not ended waits to begin again."""
        ended = set[Sequence]()
        for n in self.news:
            settle(n)
            ended |= {n.text} if n.output.ended else set()
        texts = dict.fromkeys(s for s in (*self.line.running, *self.line.waiting) if s not in ended)
        for s in texts:
            s.stored, s.scores, s.best = 0, [], None
        self.storage.recover()
        self.line = Queue(waiting=deque(texts))
        self.torn = False

    def tell(self, s: Sequence, *told: Output) -> None:
        """Note news of a text, all of it at once, and then what follows from it: where that fails, `recover` makes up for it."""
        grown = len(s.tokens) + sum(out.token is not None and out.ended != "error" for out in told)
        found = [News(s, out, grown) for out in told]
        self.news += found
        for n in found:
            settle(n)
        if any(out.ended for out in told):
            self.end(s)

    def end(self, s: Sequence) -> None:
        """A text leaves, and what it holds is given back."""
        if s in self.line.running:
            self.line.running.remove(s)
            self.storage.close(s)
        else:
            self.line.waiting.remove(s)

    def read(self, s: Sequence, rows: int, logits: Tensor) -> None:
        """Tell what a step's logits say of one text: its prompt's scores, its next token, its end."""
        if s.request.scored and not s.written:
            following = s.request.prompt[s.stored + 1 : s.stored + rows + 1]
            s.scores += logprobs(logits)[range(len(following)), following].tolist()
        s.stored += rows
        if not s.written:  # chunk by chunk: of a layer with a window, what is kept is what it still sees
            self.storage.keep(s)
        if s.owed:
            return
        for text in (s, *self.siblings(s)):
            self.draw(text, logits[-1])

    def siblings(self, s: Sequence) -> list[Sequence]:
        """Begin the other texts of a request, whose prompt the first one has stored: all of them, or none where that fails."""
        made = [replace(s, index=i, tokens=list(s.tokens), siblings=0) for i in range(1, s.siblings + 1)]
        for other in made:
            self.storage.fork(s, other)
        after = self.line.running.index(s) + 1
        self.line.running[after:after], s.siblings = made, 0
        return made

    def draw(self, s: Sequence, logits: Tensor) -> None:
        """Tell the next token of a text, after its logits [V]."""
        asked, first = s.request, tuple(s.scores) if not s.written else ()
        best, s.best = top(logits) if s.best is None else s.best, None
        if not isfinite(found := float(logits[best])):  # a NaN is larger than all
            error = UseError("generate.finite", request=s.number, step=s.written, found=found, path=self.why(s))
            return self.tell(s, Output(s.number, s.index, Token(best), "error", error, first))
        if not asked.new:
            return self.tell(s, Output(s.number, s.index, ended="length", scores=first))
        assert asked.sampling.seed is not None
        with after(self.module, "sample", s.key):
            id = self.choose(logits, asked.sampling, asked.prompt, s.tokens[len(asked.prompt) :], s.index, best)
        token = Token(id) if asked.logprobs is None else scored(logits, id, asked.logprobs)
        ended = "stop" if id in asked.stops else "length" if s.written + 1 == asked.new else None
        self.tell(s, Output(s.number, s.index, token, ended, scores=first))


def settle(n: News) -> None:
    """Give a text the token that was told of it, once."""
    if n.output.token is not None and len(n.text.tokens) < n.length:
        n.text.tokens.append(n.output.token.id)


def generate(
    module: Decoder | EncoderDecoder,
    requests: list[Request],
    free: list[Engine] | None = None,
    cached: bool = False,
    deterministic: bool = False,
) -> Iterator[Output]:
    """The news of these requests, numbered from 0 here, on an engine of their own; `free` keeps small ones for the next time, for the
    plans that they have recorded.

    cached: what is stored serves the next call that says so, as each turn of a chat begins with all before it. Else it is forgotten: a
    weight may be changed between two calls.
    """
    for i, request in enumerate(requests):
        check(module, request, f"[{i}]")
    if not requests:
        return
    tokens, texts = sum(-(-r.budget // PAGE) * PAGE * r.n for r in requests), sum(r.n for r in requests)
    limits = Limits(max(ROWS, texts), texts, len(requests), module.config.prefix)
    free = [] if free is None else free
    tokens = max(tokens, KEPT) if cached else tokens  # memory that is not written to takes no place
    engine = taken(free, tokens, deterministic) or Engine.of(module, tokens, limits, deterministic=deterministic)
    engine.count, engine.limits = 0, limits
    if not cached:
        engine.storage.forget()
    numbers = [engine.submit(request) for request in requests]
    try:
        for news in engine.outputs():
            if news.error is not None:
                raise news.error
            yield news
    finally:  # also where the caller has heard enough
        for number in numbers:
            engine.cancel(number)
        engine.receive()
        engine.news = []
        if not cached:
            engine.storage.forget()
        if engine.capacity <= KEPT:
            free.append(engine)


def taken(free: list[Engine], tokens: int, deterministic: bool) -> Engine | None:
    """One of these of this mode that holds so many tokens, which is then nobody else's; another thread may be quicker."""
    for engine in [e for e in free if e.capacity >= tokens and e.deterministic == deterministic]:
        with suppress(ValueError):
            free.remove(engine)
            return engine
    return None


def scored(logits: Tensor, id: int, top: int) -> Token:
    """A token with its log-probability, and the likeliest of all."""
    of = logprobs(logits)
    return Token(id, float(of[id]), likeliest(of, top))


def broken(module: Decoder | EncoderDecoder, ids: list[int], source: tuple[int, ...] | None = None) -> str:
    """The first tensor of a forward over these ids that holds NaN or an infinity; "-" where there is none."""
    given = [torch.tensor([list(t)], device=next(module.parameters()).device) for t in (source, ids) if t is not None]
    with torch.no_grad(), watch(module, keep=lambda x: bool(x.isfinite().all())) as seen:
        module(*given)
    return next((s.path for s in seen if not s.value), "-")
