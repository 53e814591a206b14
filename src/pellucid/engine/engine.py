"""The engine: many requests through one forward a step.

    engine = Engine.of(module, tokens=4096)
    number = engine.submit(Request(prompt=(5, 3, 80)))
    for output in engine.outputs():          # until every request has ended
        ...

One step does four things, in `advance`:

    receive           submitted requests join the queue, cancelled ones leave it
    schedule          choose how many rows of which sequences run, and reserve their pages
    run               one forward of these rows: logits of each sequence
    process_logits    sample a token for each sequence whose newest row ran, and emit it

While every sequence decodes and nothing needs Python, `run` takes several steps at once (see bursts.py).

Storage, forward and random numbers are passed in, so that a simulation (tests/support/simulate.py) runs the same steps.

Threads: any thread may call submit, cancel and close. They only record the request, under a lock held for that moment alone; the next
step acts on it. One thread at a time may step, and everything else belongs to it.

Failures: a step may raise at any call (a watch fails, memory ends, Ctrl-C). The next step returns the outputs that the failed one had
emitted, and begins every running sequence again from its tokens; a text does not depend on the number of restarts.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from threading import Lock
from typing import Any

import numpy as np
from torch import Tensor, nn

from pellucid import ops
from pellucid.batch.inference_mode import lasting
from pellucid.batch.states import stateful
from pellucid.engine.allowed import allowed, likeliest_is_chosen, prepare_masks
from pellucid.engine.bursts import steps_alone
from pellucid.engine.chunk_size import ChunkSize
from pellucid.engine.determinism import require
from pellucid.engine.draft import Draft
from pellucid.engine.forward import Forward, first_nonfinite
from pellucid.engine.memory import Memory, edits, page_size, pages_for, restart_lengths
from pellucid.engine.proposals import learn, propose
from pellucid.engine.requests import Output, Request, Sequence, Token, check, name
from pellucid.engine.scheduler import Queue, SchedulerLimits, Storage, schedule
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops.sampling.stages import choose, likeliest, logprobs, top
from pellucid.ops.sampling.uniform import fresh
from pellucid.watching.tap import after, here
from pellucid.watching.watch import Watch, watch

Run = Callable[[Mapping[Sequence, int]], dict[Sequence, Tensor]]


@dataclass(frozen=True)
class Emitted:
    """An output that `step` has not returned yet. length: the tokens of its sequence, its own included."""

    sequence: Sequence
    output: Output
    length: int


class Engine:
    """A queue of requests over a model, advanced step by step.

    capacity: the most tokens of one text, its prompt included.
    validate: raises for a request that the model cannot answer.
    diagnose: names the first tensor that is not finite, for a sequence whose logits are not.
    """

    def __init__(
        self,
        run: Run,
        storage: Storage,
        limits: SchedulerLimits,
        capacity: int,
        validate: Callable[[Request], None] = lambda request: None,
        diagnose: Callable[[Sequence], str] = lambda sequence: "-",
        entropy: Callable[[], int] = fresh,
    ) -> None:
        self.run = run
        self.storage = storage
        self.limits, self.chunk_size = limits, ChunkSize(limits.rows, limits.stall)
        self.capacity = capacity
        self.validate = validate
        self.diagnose = diagnose
        self.entropy = entropy
        self.choose = choose
        self.lock = Lock()  # guards the four below
        self.count = 0
        self.arrived = list[Sequence]()
        self.cancelled = set[tuple[int, int | None]]()  # a request and one of its texts, None for all
        self.closed = False
        self.queue = Queue()
        self.emitted = list[Emitted]()
        self.unfinished = False  # a step has begun and not ended
        self.deterministic = self.speculates = False
        self.kv: str | None = None  # the format of its keys and values, see `of`
        self.draft: Draft | None = None
        self.propose: Callable[[list[Sequence], Draft | None], None] = propose
        self.ready: Callable[[int], bool] = lambda rows: False  # True if a burst of steps of this number of rows may run
        self.interrupt = np.zeros(1, np.int64)  # 1 from a call of another thread until a step receives it: ends a burst
        self.module = nn.Module()  # what `watch` watches; a simulation has none
        self.made_for: tuple[object, object] | None = None  # the dtype and device of its module's weights when its pages were made

    @staticmethod
    @lasting
    def of(
        module: Decoder | EncoderDecoder,
        tokens: int,
        limits: SchedulerLimits | None = None,
        size: int | None = None,
        prefix_cache: bool = True,
        keep_all: bool = False,
        deterministic: bool = False,
        draft: Decoder | None = None,
        kv: str | None = None,
    ) -> "Engine":
        """Make an engine with its own pages of `size` rows, for `tokens` tokens in all. size: None is that of `page_size`.

        prefix_cache: keep the pages of ended texts for texts that begin alike.
        keep_all: compute the logits of all rows and give no page back, for a watch that reads them later.
        deterministic: a text has the same log-probabilities, bit for bit, in any batch, with any chunks of its prompt and any cache.
        Raises UseError, which names the obstacle, if the machine or the model does not allow that.
        draft: a smaller model with the same ids, which proposes tokens to requests that ask for it; None: each text proposes for itself.
        kv: "int8" holds keys and values in int8 with a scale for each head and token (see ops.held), None in the model's dtype. The
        draft's own stay in its dtype.
        """
        format = ops.format_for(module.config, kv)
        if deterministic:
            require(module, format)
        limits = replace(limits or SchedulerLimits(), whole_prompts=module.config.whole_prompts)
        size = size or page_size(module)
        pages = pages_for(module, -(-tokens // size), limits, size, keep_all, format)
        memory = Memory(module, pages, prefix_cache, keep_all)
        forward = Forward(module, pages, keep_all, deterministic)
        engine = Engine(
            forward,
            memory,
            limits,
            pages.longest,
            lambda request: check(module, request),
            lambda s: first_nonfinite(module, s.tokens, s.request.source),
        )
        engine.kv = kv
        engine.module, engine.deterministic, engine.made_for = module, deterministic, dtype_and_device(module)
        engine.ready, forward.plans.interrupt, forward.chunk_plans.interrupt = forward.ready, engine.interrupt, engine.interrupt
        engine.speculates = not keep_all and not restart_lengths(module) and not stateful(module)  # a state cannot go back
        if draft is not None and engine.speculates:
            engine.draft = memory.draft = Draft(draft, module.config.vocab, -(-tokens // size), size, limits, prefix_cache)
        return engine

    @property
    def waiting(self) -> int:
        """Count the requests that have not begun, or must begin again."""
        return len(self.queue.waiting) + len(self.arrived)

    @property
    def idle(self) -> bool:
        """True if a step would do nothing. For the thread that steps."""
        return not (self.queue.running or self.waiting or self.emitted)

    def submit(self, request: Request) -> int:
        """Queue a request and return its number. Raises UseError if the model or the engine can never answer it, or the queue is full."""
        self.validate(request)
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
            self.interrupt[0] = 1
        return number

    def cancel(self, number: int, index: int | None = None) -> None:
        """End a request, or its text `index`, with the next step. Does nothing for one that has ended, or was never submitted."""
        with self.lock:
            if number < self.count:
                self.cancelled.add((number, index))
                self.interrupt[0] = 1

    def close(self) -> None:
        """End all requests with the next step, and refuse new ones."""
        with self.lock:
            self.closed = True
            self.interrupt[0] = 1

    @contextmanager
    def watch(self, number: int, index: int = 0, **how: Any) -> Iterator[Watch]:
        """Watch one text of a request in the steps taken inside, as watching.watch does: its rows are cut from the batch's own tensors.

        An `edit` changes this text alone.
        """
        with watch(self.module, request=name(number, index), **how) as seen:
            yield seen

    def outputs(self) -> Iterator[Output]:
        """Step until every request has ended; yield each output."""
        while not self.idle:
            self.advance()
            while self.emitted:
                yield self.emitted.pop(0).output

    def step(self) -> list[Output]:
        """Run one step. Returns its outputs, after those of steps that failed before it."""
        self.advance()
        return self.pop_outputs()

    def pop_outputs(self) -> list[Output]:
        """Return the outputs that no step has returned yet."""
        outputs = [e.output for e in self.emitted]
        self.emitted = []
        return outputs

    @lasting
    def advance(self) -> None:
        """Run one step; its outputs stay in `emitted`."""
        self.receive()
        self.run_rows()

    def run_rows(self) -> None:
        """Run the rows that the scheduler chooses from the queue, and process their logits."""
        self.unfinished = True
        if self.speculates:
            self.propose(self.queue.running, self.draft)
        if chunks := schedule(self.queue, self.storage, self.limits, self.chunk_size.rows):
            timing = self.chunk_size.begin(chunks)
            self.allow_burst(chunks)
            logits = self.run(chunks)
            prepare_masks(chunks, logits)
            for s, rows in chunks.items():
                s.edited |= edits(s.key)  # then its rows serve no other request
                self.process_logits(s, rows, logits[s])
            self.chunk_size.end(timing)
        self.unfinished = False

    def allow_burst(self, chunks: Mapping[Sequence, int]) -> None:
        """Set the steps that the sequences may take at once, and take their pages: one unless all that run decode and there is no watch."""
        steps = self.limits.burst
        if here.watches or len(chunks) < len(self.queue.running) or not self.ready(len(chunks)):
            steps = 1
        for s in chunks:
            steps = min(steps, steps_alone(s, self.speculates)) if steps > 1 else 1
        for s in chunks:
            steps = self.storage.ahead(s, steps, not self.queue.waiting) if steps > 1 else 1
        for s in chunks:
            s.steps = steps

    def receive(self) -> None:
        """Apply the calls of other threads since the last step: submitted sequences join the queue, cancelled ones end."""
        if self.unfinished:
            self.recover()
        self.unfinished = True
        with self.lock:
            cancelled, closed = set(self.cancelled), self.closed
            self.interrupt[0] = 0
            self.queue.waiting = deque(sorted((*self.queue.waiting, *self.arrived), key=lambda s: s.request.priority))
            self.arrived = []
        queued = (*self.queue.running, *self.queue.waiting)
        for s in [s for s in queued if closed or not cancelled.isdisjoint({(s.number, None), (s.number, s.index)})]:
            self.emit(s, *(Output(s.number, i, ended="cancelled") for i in range(s.index, s.index + s.siblings + 1)))
        with self.lock:  # last, so that a step that fails earlier leaves all of them to the next
            self.cancelled -= cancelled
        self.unfinished = False

    def recover(self) -> None:
        """Repair the state after a failed step: keep its outputs, and let every sequence that has not ended wait to begin again."""
        ended = set[Sequence]()
        for e in self.emitted:
            append_token(e)
            ended |= {e.sequence} if e.output.ended else set()
        sequences = dict.fromkeys(s for s in (*self.queue.running, *self.queue.waiting) if s not in ended)
        for s in sequences:
            s.restart()
        self.storage.recover()
        self.queue = replace(self.queue, running=[], waiting=deque(sequences))
        self.unfinished = False

    def emit(self, s: Sequence, *outputs: Output) -> None:
        """Emit outputs of a sequence, all at once, then append their tokens, and end it if one is its end. `recover` redoes this."""
        length = len(s.tokens) + sum(out.token is not None and out.ended != "error" for out in outputs)
        emitted = [Emitted(s, out, length) for out in outputs]
        self.emitted += emitted
        for e in emitted:
            append_token(e)
        if any(out.ended for out in outputs):
            self.finish(s)

    def finish(self, s: Sequence) -> None:
        """Take a sequence out of the queue, and give its pages back."""
        if s in self.queue.running:
            self.queue.running.remove(s)
            self.storage.close(s)
        else:
            self.queue.waiting.remove(s)

    def process_logits(self, s: Sequence, rows: int, logits: Tensor) -> None:
        """Advance a sequence by the `rows` that ran: collect its prompt's scores, and sample if its newest row was among them."""
        if s.request.scored and not s.written:
            following = s.request.prompt[s.stored + 1 : s.stored + rows + 1]
            of = logprobs(logits)
            s.scores += of[range(len(following)), following].tolist()
            if (count := s.request.logprobs) is not None:
                s.tops += [likeliest(row, count) for row in of[: len(following)]]
        s.stored += rows - len(s.proposed)
        self.emit_drawn(s)
        if not s.written:  # after each chunk: a layer with a window gives back pages that it no longer sees
            self.storage.keep(s)
        if s.pending:
            return
        if s.proposed:
            return self.sample_proposed(s, logits)
        for each in (s, *self.fork_siblings(s)):
            self.sample(each, logits[-1])

    def emit_drawn(self, s: Sequence) -> None:
        """Emit the tokens that a burst has chosen."""
        drawn, s.drawn = s.drawn, []
        s.stored += s.steps - 1
        for id in drawn:
            self.emit(s, Output(s.number, s.index, Token(id), "length" if s.written + 1 == s.request.new else None))
        if s.pace is not None:
            s.pace.pause = max(0, s.pace.pause - s.steps + 1)

    def sample_proposed(self, s: Sequence, logits: Tensor) -> None:
        """Sample after the newest token of a sequence, and after each proposal while it is the token sampled before it."""
        proposed, s.proposed = s.proposed, []
        for accepted, row in enumerate(logits):
            self.sample(s, row, accepted > 0, 0 if accepted else len(proposed))
            if self.emitted[-1].output.ended is not None or accepted == len(proposed) or s.tokens[-1] != proposed[accepted]:
                break
            s.stored += 1
            self.storage.accept(s.key, s.stored)
        s.best = []
        learn(s, self.draft, len(proposed), accepted)
        self.queue.proposed, self.queue.accepted = self.queue.proposed + len(proposed), self.queue.accepted + accepted

    def fork_siblings(self, s: Sequence) -> list[Sequence]:
        """Begin the other n - 1 texts of a request after the first has stored the prompt: all of them, or on failure none."""
        siblings = [replace(s, index=i, tokens=list(s.tokens), siblings=0) for i in range(1, s.siblings + 1)]
        for sibling in siblings:
            self.storage.fork(s, sibling)
        at = self.queue.running.index(s) + 1
        self.queue.running[at:at], s.siblings = siblings, 0
        return siblings

    def sample(self, s: Sequence, logits: Tensor, same_step: bool = False, proposed: int = 0) -> None:
        """Sample the next token of a sequence from its logits [V], and emit it, or an error if they are not finite.

        same_step, proposed: see Output.
        """
        request = s.request
        first: Any = {} if s.written else {"scores": tuple(s.scores), "tops": tuple(s.tops), "cached": s.cached or 0}
        best = s.best.pop(0) if s.best else top(logits)  # the largest logit's number; a recorded plan may have found it
        if not isfinite(largest := float(logits[best])):  # a NaN is larger than all
            error = UseError("generate.finite", request=s.number, step=s.written, found=largest, path=self.diagnose(s))
            return self.emit(s, Output(s.number, s.index, Token(best), "error", error, **first))
        if not request.new:
            return self.emit(s, Output(s.number, s.index, ended="length", **first))
        assert request.sampling.seed is not None
        written = s.new_tokens
        sure = likeliest_is_chosen(request, written, s.index, best)
        mask: Any = {} if sure or (tokens := allowed(request, written, s.index, len(logits))) is None else {"allowed": tokens}
        with after(self.module, "sample", s.key):
            id = self.choose(logits, request.sampling, request.prompt, written, s.index, best, **mask)
        token = Token(id) if request.logprobs is None else with_logprobs(logits, id, request.logprobs)
        ended = "stop" if id in request.stops else "length" if s.written + 1 == request.new else None
        self.emit(s, Output(s.number, s.index, token, ended, same_step=same_step, proposed=proposed, **first))


def append_token(e: Emitted) -> None:
    """Append an emitted token to its sequence, once."""
    if e.output.token is not None and len(e.sequence.tokens) < e.length:
        e.sequence.tokens.append(e.output.token.id)


def dtype_and_device(module: nn.Module) -> tuple[object, object]:
    """Return the dtype and device of a module's first weight."""
    weight = next(module.parameters())
    return weight.dtype, weight.device


def with_logprobs(logits: Tensor, id: int, count: int) -> Token:
    """Return a token with its log-probability, and the `count` likeliest tokens with theirs."""
    of = logprobs(logits)
    return Token(id, float(of[id]), likeliest(of, count))
