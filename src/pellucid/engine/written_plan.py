"""A plan of one row as data, for a program that is no Python: its calls by name, the memory behind their pointers, and its taps.

    region 3   {"kind": "weight", "shared": true, "name": "layers.0.attn.q.weight", "shape": [128, 128], "dtype": "float32", "bytes": 65536}
    call 7     {"op": "linear", "half": 0, "words": {"w": [3, 0], "x": [41, 0], "y": [42, 0], "bias": [4, 0], "rows": 1, ...}}
    tap        {"path": "layers.0.attn.q", "region": 42, "at": 0, "shape": [1, 1, 4, 32], ...}

A pointer is a region and an offset in bytes. A replay gives every region memory of its own, fills the tables of pages
with 0, 1, 2 ..., and sets token, position and length before each row. A prompt is read row by row, since a row has the same bits alone and
in a prompt. A weight in blocks is two regions, its codes and its scales: "….weight.codes" with the weight's width, and "….weight.scales".

Rows that see one another (a prompt under a prefix mask, an encoder's text, an encoder-decoder's source) have the same calls: each runs for
all rows before the next runs for any, and `until` of an attend call is the number of rows. Every row then has "made" regions of its own,
one after another in memory, so that cross attention finds the source's keys and values as the engine keeps them.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from pellucid.batch.kv_cache import PagedCache, Span
from pellucid.batch.mask import causal
from pellucid.batch.states import stateful
from pellucid.engine.memory import page_size, restart_lengths, windows_of
from pellucid.engine.plans import DecodeStep, Plans, StepBuffers, likeliest
from pellucid.engine.replay_trace import TapEvent
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder
from pellucid.ops.blocks import Blocks
from pellucid.ops.native import Plan
from pellucid.ops.native.planned_calls import PlannedCall, Range
from pellucid.watching.watch import watch

HEAD = 24  # bytes of a call before its words
SHARED = ("weight", "table", "pool", "data", "memory")  # kinds of regions that all rows share
ROWS = ("B T", "B S", "N")  # the first axes of a tap with rows of its own for each token; N: those that a token sends to experts


@dataclass(frozen=True)
class WrittenPlan:
    """A plan's document, and the weights that its regions name, each as it lies in memory."""

    document: dict[str, Any]
    weights: dict[str, Tensor]


def written_plan(module: torch.nn.Module, longest: int) -> WrittenPlan:
    """Record a plan of one row for texts of up to `longest` tokens, and return it as data.

    A UseError names what a model has that such a plan lacks: a forward without head, states, no kernels.
    """
    if not isinstance(module, Decoder | EncoderDecoder) or not module.config.head or module.config.pooler:
        raise UseError("plan.kind")
    restarts = bool(restart_lengths(module)) and (together(module) or isinstance(module, EncoderDecoder))
    if stateful(module) or restarts or not even(module):
        raise UseError("plan.row")
    size = page_size(module)
    pages = -(-longest // size)
    windows = windows_of(module)
    cache = PagedCache(pages if None in windows else 0, size, {w: pages for w in windows if w is not None}, pages * size)
    plans = OneRow(module, cache)
    plans.plain_step(plans.filled(), plans.spans)  # makes the pools
    buffers = plans.filled()
    with watch(module, keep=lambda x: None):
        plans.record(buffers, plans.spans)
    if not isinstance(buffers.plan, Plan) or buffers.recorder is None:
        raise UseError("plan.refused", reason=buffers.refused or "-")
    return PlanWriter(module, cache, plans, buffers, buffers.plan).plan()


def together(module: Decoder | EncoderDecoder) -> bool:
    """True if the rows of a prompt see one another: those of an encoder, and of a decoder under a prefix mask."""
    return isinstance(module, Encoder) or bool(module.config.prefix)


def even(module: Decoder | EncoderDecoder) -> bool:
    """True if all attentions of a stack let a row see later ones, or none does, and a row that sees one sees all."""
    own = [layer.attn for layer in module.config.layers]
    if any(a.fill is not None or (together(module) and a.chunk is not None) for a in own):
        return False
    return all(a.causal is not isinstance(module, Encoder) for a in own)


class OneRow(Plans):
    """Plans of one row that is alone, so that a causal mask hides nothing from it; of an encoder-decoder, with a source of one row."""

    spans = (Span(0, 0, 1),)

    def __init__(self, module: Decoder | EncoderDecoder, cache: PagedCache) -> None:
        super().__init__(module, cache)
        cache.reserve(0, 1)
        self.types, self.source = torch.zeros(1, 1, dtype=torch.long), StepBuffers(1, cache, 0)

    def filled(self) -> StepBuffers:
        """Return buffers for the row at position 0."""
        buffers = self.buffers_for(1)
        for own in (buffers, self.source):
            own.set([0], self.spans, {})
        return buffers

    def step_of(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> DecodeStep:
        step = super().step_of(buffers, spans)
        step.mask, step.types, step.task = causal, self.types, self.types
        return step

    def forward(self, buffers: StepBuffers, step: DecodeStep) -> tuple[Tensor, Tensor]:
        if not isinstance(self.model, EncoderDecoder):
            return super().forward(buffers, step)
        self.pages.memory.clear()  # so that the keys and values of the source are computed in this step
        source = self.step_of(self.source, step.spans)
        with torch.no_grad():
            logits = self.model(self.source.tokens, buffers.tokens, step, source)
            return logits[0], likeliest(logits)[0]


class PlanWriter:
    """The regions of one plan, and what names them."""

    def __init__(self, module: Decoder | EncoderDecoder, cache: PagedCache, plans: OneRow, buffers: StepBuffers, plan: Plan) -> None:
        self.module, self.cache, self.plans, self.buffers, self.calls = module, cache, plans, buffers, plan.calls
        self.storages = list({s.data_ptr(): s for s in plan.alive if s.nbytes()}.values())
        self.number = {s.data_ptr(): i for i, s in enumerate(self.storages)}
        self.parameters: dict[int, tuple[str, Tensor]] = {}
        self.widths: dict[str, int] = {}  # of weights in blocks, by the name of their codes
        for name, p in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
            for part, t in tensors_of(name, p.detach()).items():
                self.parameters.setdefault(t.untyped_storage().data_ptr(), (part, t))
            if isinstance(p, Blocks):
                self.widths[f"{name}.codes"] = p.shape[-1]
        self.kinds: dict[int, str] = {}  # of the regions that are no weights and no data
        for call in plan.calls:
            self.kinds |= dict.fromkeys(self.regions(call.writes), "made")
        self.kinds |= {pool.untyped_storage().data_ptr(): "pool" for _, pool in cache.stores()}
        for own, prefix in ((buffers, ""), (plans.source, "source ")):
            inputs = {"token": own.tokens, "position": own.positions, "length": own.lengths}
            self.kinds |= {t.untyped_storage().data_ptr(): prefix + kind for kind, t in inputs.items()}
            self.kinds |= {t.untyped_storage().data_ptr(): "table" for t in own.tables.values()}
        if plans.cross_attention:
            self.kinds[buffers.memories.untyped_storage().data_ptr()] = "memory"

    def plan(self) -> WrittenPlan:
        """Return the plan as data."""
        weights = {}
        for s in self.storages:
            if (named := self.parameters.get(s.data_ptr())) is not None:
                name, p = named
                weights[name] = narrowed(covering(p, s))
        recorder = self.buffers.recorder
        assert recorder is not None
        events = [e for e in recorder.events if isinstance(e, TapEvent)]
        source = self.source_calls()
        memory = [self.cache.memory[part, 0][0] for part in self.plans.cross_attention]
        document: dict[str, Any] = {
            "schema": 1,
            "together": together(self.module),
            "regions": [{**r, "shared": r["kind"] in SHARED} for r in map(self.region, self.storages)],
            "source": [self.call(call) for call in self.calls if id(call) in source],
            "calls": [self.call(call) for call in self.calls if id(call) not in source],
            "memory": [[self.tensor(x) for x in stored] for stored in memory],
            "taps": [{"path": e.spot.path, "dims": e.spot.dims, **self.tensor(e.x)} for e in events],
            "logits": self.tensor(self.buffers.logits),
            "best": self.tensor(self.buffers.best),
        }
        for tap in document["taps"]:
            if not tap["dims"].startswith(ROWS) or (tap["dims"].startswith("B") and tap["shape"][:2] != [1, 1]):
                raise UseError("plan.tap", path=tap["path"], dims=tap["dims"])
        return WrittenPlan(document, weights)

    def regions(self, ranges: Iterable[Range]) -> set[int]:
        """Return the addresses of the regions that ranges of memory begin in."""
        return {self.storages[self.place(low)[0]].data_ptr() for low, _ in ranges}

    def source_calls(self) -> set[int]:
        """Return the calls that need nothing but the source: those that read what comes of its rows."""
        made = {address for address, kind in self.kinds.items() if kind.startswith("source ")}
        calls = set[int]()
        for call in self.calls:
            if made & self.regions(call.reads):
                made |= self.regions(call.writes)
                calls.add(id(call))
        return calls

    def place(self, address: int) -> tuple[int, int]:
        """Return the region of an address, and the offset in it."""
        for i, s in enumerate(self.storages):
            if s.data_ptr() <= address < s.data_ptr() + s.nbytes():
                return i, address - s.data_ptr()
        raise AssertionError(address)

    def region(self, s: UntypedStorage) -> dict[str, Any]:
        """Describe a region: what fills it before the first row."""
        address, size = s.data_ptr(), s.nbytes()
        if address in self.parameters:
            name, p = self.parameters[address]
            width = {"width": self.widths[name]} if name in self.widths else {}
            dtype, shape = str(p.dtype).removeprefix("torch."), list(covering(p, s).shape)
            return {"kind": "weight", "bytes": size, "name": name, "shape": shape, "dtype": dtype, **width}
        if address in self.kinds:
            return {"kind": self.kinds[address], "bytes": size}
        values = torch.empty(0, dtype=torch.uint8).set_(s).numpy().tobytes()
        return {"kind": "data", "bytes": size, "data": base64.b64encode(values).decode("ascii")}

    def call(self, call: PlannedCall) -> dict[str, Any]:
        """Return a call with its words by name; a pointer as region and offset, a null pointer as null."""
        words = dict[str, Any](call.fields)
        for name, letter in zip(call.op.fields, call.op.letters, strict=True):
            if letter == "p":
                words[name] = list(self.place(words[name])) if words[name] else None
        return {"op": call.op.name, "half": call.half, "words": words}

    def tensor(self, x: Tensor) -> dict[str, Any]:
        """Describe where a tensor lies."""
        region, at = self.place(x.data_ptr())
        dtype = str(x.dtype).removeprefix("torch.")
        return {"region": region, "at": at, "shape": list(x.shape), "strides": list(x.stride()), "dtype": dtype}


def tensors_of(name: str, p: Tensor) -> dict[str, Tensor]:
    """Return the tensors that a parameter's numbers lie in, by name: of one in blocks its codes and its scales."""
    return {f"{name}.codes": p.codes, f"{name}.scales": p.scales} if isinstance(p, Blocks) else {name: p}


def covering(p: Tensor, s: UntypedStorage) -> Tensor:
    """Return the numbers of a parameter's storage: the parameter itself if it covers it, else all in one row."""
    return p if p.is_contiguous() and p.nbytes == s.nbytes() else torch.empty(0, dtype=p.dtype).set_(s)


def narrowed(x: Tensor) -> Tensor:
    """Return a weight in bfloat16 if that loses nothing, else as it is."""
    short = x.to(torch.bfloat16)
    return short if x.dtype == torch.float32 and torch.equal(short.to(x.dtype), x) else x
