"""A decode plan of one row as data, for a program that is no Python: its calls by name, the memory behind their pointers, and its taps.

    region 3   {"kind": "weight", "name": "layers.0.attn.q.weight", "dtype": "float32", "bytes": 65536}
    call 7     {"op": "linear", "half": 0, "words": {"w": [3, 0], "x": [41, 0], "y": [42, 0], "bias": [4, 0], "rows": 1, ...}}
    tap        {"path": "layers.0.attn.q", "region": 42, "at": 0, "shape": [1, 1, 4, 32], ...}

A pointer is a region and an offset in bytes. A replay gives every region memory of its own, fills the tables of pages
with 0, 1, 2 ..., and sets token, position and length before each row. A prompt is read row by row, since a row has the same bits alone and
in a prompt.
"""

import base64
from dataclasses import dataclass
from struct import unpack_from
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.states import stateful
from pellucid.engine.memory import page_size, restart_lengths, windows_of
from pellucid.engine.plans import Plans, StepBuffers
from pellucid.engine.replay_trace import TapEvent
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder
from pellucid.ops.native import Plan
from pellucid.ops.native.plan import PlannedCall
from pellucid.watching.watch import watch

HEAD = 24  # bytes of a call before its words
ROW = "B T"  # the first axes of a tap with one row for each token


@dataclass(frozen=True)
class WrittenPlan:
    """A plan's document, and the weights that its regions name, each as it lies in memory."""

    document: dict[str, Any]
    weights: dict[str, Tensor]


def written_plan(module: torch.nn.Module, longest: int) -> WrittenPlan:
    """Record a decode plan of one row for texts of up to `longest` tokens, and return it as data.

    A UseError names what a model has that such a plan lacks: rows that see later rows, states, changing frequencies, no kernels.
    """
    if not isinstance(module, Decoder) or isinstance(module, Encoder) or module.config.prefix or module.config.whole_prompts:
        raise UseError("plan.kind")
    if stateful(module) or restart_lengths(module):
        raise UseError("plan.row")
    size = page_size(module)
    pages = -(-longest // size)
    windows = windows_of(module)
    cache = PagedCache(pages if None in windows else 0, size, {w: pages for w in windows if w is not None}, pages * size)
    plans = Plans(module, cache)
    plans.step({0: 0})  # makes the pools
    with watch(module, keep=lambda x: None):
        plans.step({0: 0})
    buffers = plans.buffers[1]
    if buffers.plan is None or buffers.recorder is None:
        raise UseError("plan.refused", reason=buffers.refused or "-")
    return PlanWriter(module, cache, buffers, buffers.plan).plan()


class PlanWriter:
    """The regions of one plan, and what names them."""

    def __init__(self, module: Decoder, cache: PagedCache, buffers: StepBuffers, plan: Plan) -> None:
        self.buffers, self.calls, self.size = buffers, plan.calls, cache.size
        self.storages = list({s.data_ptr(): s for s in plan.alive if s.nbytes()}.values())
        self.number = {s.data_ptr(): i for i, s in enumerate(self.storages)}
        self.parameters: dict[int, tuple[str, Tensor]] = {}
        for name, p in module.named_parameters(remove_duplicate=False):
            self.parameters.setdefault(p.untyped_storage().data_ptr(), (name, p.detach()))
        inputs = {"token": buffers.tokens, "position": buffers.positions, "length": buffers.lengths}
        self.inputs = {t.untyped_storage().data_ptr(): kind for kind, t in inputs.items()}
        self.inputs |= {t.untyped_storage().data_ptr(): "table" for t in buffers.tables.values()}
        self.made = {pool.untyped_storage().data_ptr() for _, pool in cache.stores()}  # zeros at the start, and what calls write
        for call in plan.calls:
            self.made |= {self.storages[self.place(low)[0]].data_ptr() for low, _ in call.writes}

    def plan(self) -> WrittenPlan:
        """Return the plan as data."""
        weights = {}
        for s in self.storages:
            if (named := self.parameters.get(s.data_ptr())) is not None:
                name, p = named
                covers = p.is_contiguous() and p.nbytes == s.nbytes()
                weights[name] = narrowed(p if covers else torch.empty(0, dtype=p.dtype).set_(s))
        recorder = self.buffers.recorder
        assert recorder is not None
        events = [e for e in recorder.events if isinstance(e, TapEvent)]
        document: dict[str, Any] = {
            "schema": 1,
            "regions": list(map(self.region, self.storages)),
            "calls": list(map(self.call, self.calls)),
            "taps": [{"path": e.spot.path, "dims": e.spot.dims, **self.tensor(e.x)} for e in events],
            "logits": self.tensor(self.buffers.logits),
            "best": self.tensor(self.buffers.best),
        }
        for tap in document["taps"]:
            if not tap["dims"].startswith(ROW) or tap["shape"][:2] != [1, 1]:
                raise UseError("plan.tap", path=tap["path"], dims=tap["dims"])
        return WrittenPlan(document, weights)

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
            return {"kind": "weight", "bytes": size, "name": name, "dtype": str(p.dtype).removeprefix("torch.")}
        if address in self.inputs:
            return {"kind": self.inputs[address], "bytes": size}
        if address in self.made:
            return {"kind": "zeros", "bytes": size}
        values = torch.empty(0, dtype=torch.uint8).set_(s).numpy().tobytes()
        return {"kind": "data", "bytes": size, "data": base64.b64encode(values).decode("ascii")}

    def call(self, call: PlannedCall) -> dict[str, Any]:
        """Return a call with its words by name; a pointer as region and offset, a null pointer as null."""
        op, words = call.op, dict[str, Any]()
        letters = [op.letters[i] for i in range(len(op.fields))]
        code = unpack_from("=q", call.words)[0]
        for i, (name, letter) in enumerate(zip(op.fields, letters, strict=True)):
            word = unpack_from("=d" if letter == "d" else "=q", call.words, HEAD + 8 * i)[0]
            words[name] = word if letter != "p" else list(self.place(word)) if word else None
        return {"op": op.name, "half": code - op.code, "words": words}

    def tensor(self, x: Tensor) -> dict[str, Any]:
        """Describe where a tensor lies."""
        region, at = self.place(x.data_ptr())
        dtype = str(x.dtype).removeprefix("torch.")
        return {"region": region, "at": at, "shape": list(x.shape), "strides": list(x.stride()), "dtype": dtype}


def narrowed(x: Tensor) -> Tensor:
    """Return a weight in bfloat16 if that loses nothing, else as it is."""
    short = x.to(torch.bfloat16)
    return short if x.dtype == torch.float32 and torch.equal(short.to(x.dtype), x) else x
