"""The same tokens by another library, in alternating turns with ours, so that both ran within the same seconds on the same machine.

A turn reads a prompt and writes `new` tokens greedily; it gives the seconds of all of it, and of what comes after the first token.
"""

import ctypes
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pellucid.bench.batch_load import BatchLoad, First, Progress
from pellucid.engine.engine import Engine
from pellucid.engine.requests import Request
from pellucid.errors import UseError

PEERS = {"transformers": "transformers", "llama.cpp": "llama_cpp"}  # what they are called, and their module
PAIRS = 5
Turn = Callable[[], tuple[list[int], float, float]]


@dataclass(frozen=True)
class Against:
    """Pairs of turns: seconds of each, ours and theirs, in all and after the first of `new` tokens."""

    peer: str
    version: str
    new: int
    ours: list[tuple[float, float]]
    theirs: list[tuple[float, float]]

    def ratio(self, part: int) -> float:
        """Return how many times as fast ours is, the median of the pairs. part: 0 for all, 1 after the first token."""
        return statistics.median(b[part] / a[part] for a, b in zip(self.ours, self.theirs, strict=True))

    def rate(self, turns: Sequence[tuple[float, float]]) -> float:
        """Return the tokens a second after the first."""
        return (self.new - 1) / statistics.median(after for _, after in turns)


@dataclass(frozen=True)
class Served:
    """What was measured through the engine, besides single steps."""

    first: First | None = None
    batch: BatchLoad | None = None
    against: Against | None = None


def require(peer: str) -> None:
    """Refuse a peer that is unknown or not installed."""
    if peer not in PEERS:
        raise UseError("bench.peer", found=peer, allowed=", ".join(PEERS))
    if importlib.util.find_spec(PEERS[peer]) is None:
        raise UseError("bench.absent", peer=peer, module=PEERS[peer])


def pairs(peer: str, mine: Turn, other: Turn, new: int, progress: Progress = lambda done, total: None) -> Against:
    """Run alternating turns, after one of each to warm up; the other begins every other pair."""
    seen: dict[Turn, list[tuple[float, float]]] = {mine: [], other: []}
    for i in range(PAIRS + 1):
        for turn in (mine, other) if i % 2 else (other, mine):
            seen[turn].append(turn()[1:])
        progress(i + 1, PAIRS + 1)
    version = str(getattr(importlib.import_module(PEERS[peer]), "__version__", "-"))
    return Against(peer, version, new, seen[mine][1:], seen[other][1:])


def our_turn(engine: Engine, ids: Sequence[int], new: int) -> Turn:
    """Return a turn of an idle engine without prefix cache."""

    def turn() -> tuple[list[int], float, float]:
        began = time.perf_counter()
        engine.submit(Request(tuple(ids), new, streamed=False))
        out = list[Any]()
        while not out:  # a prompt longer than a step's rows
            out += engine.step()
        first = time.perf_counter()
        out += engine.outputs()
        ended = time.perf_counter()
        return [output.token.id for output in out if output.token], ended - began, ended - first

    return turn


def their_model(name: str, folder: Path | None, fields: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Return transformers' model of a folder, or of a config.json's fields with random weights."""
    library: Any = importlib.import_module("transformers")
    library.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    try:
        if folder is not None:
            return library.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
        return library.AutoModelForCausalLM.from_config(library.AutoConfig.for_model(**fields), dtype=dtype).eval()
    except Exception as broken:  # whatever another library finds wrong with it is its word, not our fault
        raise UseError("bench.theirs", model=name, reason=str(broken).strip().split("\n")[0] or type(broken).__name__) from None


def their_turn(net: Any, ids: Sequence[int], new: int) -> Turn:
    """Return a turn of transformers' generate, timed by a stopping criterion at every token."""
    library: Any = importlib.import_module("transformers")
    net.generation_config = library.GenerationConfig(pad_token_id=0, eos_token_id=None)  # the model's own may stop, or draw
    stamps: list[float] = []

    class Clock(library.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            stamps.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def turn() -> tuple[list[int], float, float]:
        stamps.clear()
        began, x = time.perf_counter(), torch.tensor([list(ids)])
        clocks = library.StoppingCriteriaList([Clock()])
        with torch.no_grad():
            y = net.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=new, do_sample=False, stopping_criteria=clocks)
        ended = time.perf_counter()
        return y[0, len(ids) :].tolist(), ended - began, stamps[-1] - stamps[0]

    return turn


def gguf_of(folder: Path | None, name: str) -> Path:
    """Return the GGUF file beside a model's weights. A UseError if there is none."""
    files = sorted(folder.glob("*.gguf")) if folder is not None else []
    if not files:
        raise UseError("bench.gguf", model=name)
    return files[0]


def llama_turn(path: Path, threads: int, vocab: int, ids: Sequence[int], new: int) -> Turn:
    """Return a turn of llama.cpp through its C interface; only the choice of a token is in Python."""
    lc: Any = importlib.import_module("llama_cpp")
    lc.llama_backend_init()
    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
    if not model:
        raise UseError("bench.theirs", model=str(path), reason="llama_model_load_from_file")
    params = lc.llama_context_default_params()
    params.n_ctx = params.n_batch = max(512, len(ids) + new)
    params.n_threads = params.n_threads_batch = threads
    context = lc.llama_init_from_model(model, params)

    def feed(tokens: Sequence[int]) -> int:
        array = (lc.llama_token * len(tokens))(*tokens)
        if lc.llama_decode(context, lc.llama_batch_get_one(array, len(tokens))):
            raise UseError("bench.theirs", model=str(path), reason="llama_decode")
        return int(np.ctypeslib.as_array(lc.llama_get_logits_ith(context, -1), (vocab,)).argmax())

    def turn(keep: Any = quiet) -> tuple[list[int], float, float]:
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        began = time.perf_counter()
        out = [feed(ids)]
        first = time.perf_counter()
        while len(out) < new:
            out.append(feed(out[-1:]))
        ended = time.perf_counter()
        return out, ended - began, ended - first

    return turn
