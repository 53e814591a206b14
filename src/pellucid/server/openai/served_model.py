"""A model under the name that clients call it by, with its engine thread; outputs go from that thread to the loop of the server."""

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pellucid.api.draft_model import draft_for
from pellucid.api.model import Model
from pellucid.counting import Setting, weighed
from pellucid.engine.defaults import defaults
from pellucid.engine.engine import Engine
from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.grammar import GrammarCompiler
from pellucid.engine.requests import Output, Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import RequestError, UseError
from pellucid.nn.transformer import Encoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.server.faults import unforeseen
from pellucid.server.openai.embedder import Embedder, pooling_of
from pellucid.server.openai.prometheus import ModelCounters

Timed = tuple[Output, float | None]  # and when its request first ran
TOKENS = 65_536  # of all texts at once; on a CPU memory is taken as it is written
STALL = 2.0  # a step with a chunk of a prompt takes at most this many times as long as a burst, see SchedulerLimits


class ServedModel:
    """A model that answers requests.

    folder: its files, None for a hub id.  base: the model that it adapts.  tokens: of all texts at once.
    waiting: the most requests in the queue.  version: Pellucid's.  longest: tokens of a text, its prompt included.
    counters: what /metrics shows of it, None without prometheus_client.  speculate: propose tokens, by `draft` if there is one.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        tokens: int | None,
        waiting: int,
        version: str,
        deterministic: bool = False,
        folder: Path | None = None,
        base: str | None = None,
        speculate: bool = False,
        draft: Model | None = None,
        kv: str | None = None,
    ) -> None:
        self.name, self.model, self.created, self.parent = name, model, int(time.time()), base
        self.counters, self.speculate = ModelCounters.of(name), speculate
        self.tokenizer, self.vocab = model.tokenizer, model.config.vocab
        self.stops = frozenset((*model.stops, *(id for kind, id in model.tokenizer.special.items() if kind == "eos" and id < self.vocab)))
        self.fingerprint = fingerprint(model, version)
        self.compiler: GrammarCompiler | None = None
        self.lock = threading.Lock()  # guards the compiler
        self.steps = self.rows = 0  # that the engine has run
        self.queues: dict[int, asyncio.Queue[Timed]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        cfg = model.config
        self.longest = cfg.positions or cfg.context or TOKENS
        self.thread: EngineThread | None = None
        if not isinstance(model.module, Encoder):
            limits = SchedulerLimits(waiting=waiting, stall=STALL)
            proposes = draft_for(model, draft) if speculate else None
            size = tokens or max(TOKENS, self.longest)
            engine = Engine.of(model.module, size, limits, deterministic=deterministic, draft=proposes, kv=kv)
            self.longest = min(self.longest, engine.capacity)
            self.thread = EngineThread(engine, self.deliver, self.report, self.observe)
        self.embedder = Embedder(model, pooling_of(folder)) if isinstance(model.module, Encoder) else None
        own, _ = defaults(model.generation, name)
        self.sampling = own if own.temperature else replace(own, temperature=1.0)

    @cached_property
    def marks(self) -> dict[str, int]:
        """Return the ids of the pieces that may be marks of a chat, such as "<tool_call>" or "[ARGS]"."""
        pieces = ((self.tokenizer.piece(id), id) for id in range(self.vocab))
        return {piece: id for piece, id in pieces if piece[:1] in ("<", "[") and piece[-1:] in (">", "]")}

    @cached_property
    def costs(self) -> tuple[int, int]:
        """Return the products of a row with weights, in FLOP, and the bytes of the weights that a step reads at most; without attention."""
        bill = weighed(self.model.config, self.name, self.model.family.name, Setting())
        table = None if self.model.config.tied else "embed.weight"
        read = sum(p.nbytes for name, p in self.model.module.named_parameters() if name != table)
        return 2 * int(bill["parameters.active_without_input"]), read

    @property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars over the vocabulary, made once. Raises a UseError without llguidance."""
        with self.lock:
            if self.compiler is None:
                self.compiler = GrammarCompiler(self.tokenizer, self.vocab, sorted(self.stops))
            return self.compiler

    def settings(self, given: dict[str, Any], bias: dict[int, float]) -> Sampling:
        """Return the settings of a request over those of generation_config.json; the temperature is 1 by default, as OpenAI's."""
        return replace(self.sampling, **given, bias=bias)

    def report(self, fault: Exception) -> None:
        """Log an exception of a step, without its message."""
        unforeseen(fault)

    def observe(self, rows: int) -> None:
        """Count a step and its rows."""
        self.steps, self.rows = self.steps + 1, self.rows + rows
        if self.counters is not None:
            self.counters.rows.observe(rows)

    def deliver(self, outputs: list[Output]) -> None:
        """Hand the outputs of a step to the loop; called in the engine's thread."""
        assert self.thread is not None
        if self.loop is not None and not self.loop.is_closed():
            timed = [(output, self.thread.began.get(output.request)) for output in outputs]
            with suppress(RuntimeError):  # the loop was closed just now
                self.loop.call_soon_threadsafe(self.dispatch, timed)

    def dispatch(self, outputs: "list[Timed]") -> None:
        """Put each output into the queue of its request."""
        for output, began in outputs:
            if (queue := self.queues.get(output.request)) is not None:
                queue.put_nowait((output, began))

    def submit(self, requests: Sequence[Request]) -> "Submitted":
        """Submit requests, all of them or, on an error, none. Raises UseError as Engine.submit; call it in the loop's thread."""
        if self.thread is None:
            raise RequestError("serve.encoder", 400, "model", name=self.name)
        self.loop = asyncio.get_running_loop()
        submitted = Submitted(self.thread, self.queues)
        try:
            for request in requests:
                submitted.add(request)
        except UseError:
            submitted.close()
            raise
        return submitted

    def close(self) -> bool:
        """End the thread. Returns True if it has ended."""
        return self.thread is None or self.thread.close()


class Submitted:
    """Requests of one body in the engine, numbered from 0, and their outputs as they come. `close` cancels those that have not ended."""

    def __init__(self, thread: EngineThread, queues: dict[int, asyncio.Queue[Timed]]) -> None:
        self.thread, self.queues = thread, queues
        self.queue = asyncio.Queue[Timed]()
        self.numbers: dict[int, int] = {}
        self.requests: list[Request] = []
        self.left: dict[int, set[int]] = {}  # texts that have not ended, by request
        self.began: float | None = None  # when the first of them ran

    def add(self, request: Request) -> None:
        """Submit one request."""
        number = self.thread.submit(request)
        self.numbers[number] = len(self.numbers)
        self.requests.append(request)
        self.left[number] = set(range(request.n))
        self.queues[number] = self.queue

    async def outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Yield each output with the number of its request. Raises the error of one that fails."""
        while self.left:
            output, began = await self.queue.get()
            self.began = began if self.began is None else self.began
            number = output.request
            if output.ended is not None and number in self.left:
                self.left[number].discard(output.index)
                if not self.left[number]:
                    del self.left[number]
            if output.error is not None:
                raise output.error
            yield self.numbers[number], output

    def stop(self, position: int, index: int, tokens: int) -> None:
        """Cancel one text, which has met a stop string after this number of tokens. A watch drops what comes later."""
        number = next(n for n, at in self.numbers.items() if at == position)
        if (watched := self.requests[position].watched) is not None:
            watched.last = tokens
        if index in self.left.get(number, ()):
            self.thread.cancel(number, index)

    def close(self) -> None:
        """Cancel what has not ended; its pages are free after the engine's next step."""
        for number in self.numbers:
            self.queues.pop(number, None)
            if number in self.left:
                self.thread.cancel(number)


def fingerprint(model: Model, version: str) -> str:
    """Return a hash of Pellucid's version, the config, and numbers of every weight."""
    digest = hashlib.blake2b(f"{version} {model.config!r} {model.quant}".encode(), digest_size=8)
    for name, p in model.module.named_parameters():
        row = p.detach().reshape(-1)
        some = row[:: max(1, len(row) // 64)][:64].to("cpu").double()
        digest.update(f"{name} {tuple(p.shape)} {p.dtype}".encode() + some.numpy().tobytes())
    return f"fp_{digest.hexdigest()}"
