"""Watches among threads, beside torch's compiler, and in memory: their state is the thread's, the process's, or freed."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import FULL
from pellucid.watching import tap
from pellucid.watching import watch as watching
from pellucid.watching.records import Seen
from pellucid.watching.tap import Owner, ThreadState
from pellucid.watching.terms import Terms
from pellucid.watching.watch import Watch, watch
from resident import resident
from test_watch import TOKENS, clean
from tiny import FAMILIES, GPT2, inputs, swapped, tiny


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Shared:
    """State that all threads share, the mutant."""

    watches: tuple[Watch, ...] = ()
    calls: tuple[tap.Call, ...] = ()
    segment: Owner | None = None
    marks: list[Seen] | None = None
    source = "executed"
    terms: dict[int, tuple[Tensor, Callable[[tap.Index], Terms]]] = {}


def race(model: nn.Module, other: nn.Module) -> tuple[set[int], list[str]]:
    """Watch a model while two threads run it and another one; return the number of records of each time, and the errors."""
    stop, failed, counts = threading.Event(), list[str](), set[int]()

    def busy(m: nn.Module) -> None:
        with torch.no_grad():
            while not stop.is_set():
                try:
                    m(TOKENS)
                except Exception as e:
                    failed.append(repr(e))
                    stop.set()

    threads = [threading.Thread(target=busy, args=(m,)) for m in (model, other)]
    for t in threads:
        t.start()
    try:
        for _ in range(15):
            with watch(model) as seen:
                model(TOKENS)
                other(TOKENS)
            counts.add(len(seen))
    except Exception as e:
        failed.append(repr(e))
    finally:
        stop.set()
        for t in threads:
            t.join()
    return counts, failed


def test_other_threads_are_not_recorded() -> None:
    model, other = tiny("llama", torch.float32), tiny("gpt2", torch.float32)
    with watch(model) as seen:
        model(TOKENS)
    assert race(model, other) == ({len(seen)}, [])
    shared = Shared()
    with swapped(tap, "here", shared), swapped(watching, "here", shared):
        counts, failed = race(model, other)
    assert counts != {len(seen)} or failed
    assert isinstance(tap.here, ThreadState) and clean(model, other)


def test_two_threads_watch_two_models() -> None:
    """Each watch records its own model only, each time that it runs."""
    models = {name: tiny(name, torch.float32) for name in ("llama", "deepseek_v3", "gpt_oss")}
    expected, got = {}, dict[str, list[list[str]]]()
    for name, model in models.items():
        with watch(model) as seen:
            model(TOKENS)
        expected[name] = [[s.path for s in seen]] * 8

    def follow(name: str) -> None:
        with torch.no_grad():
            for _ in range(8):
                with watch(models[name]) as seen:
                    models[name](TOKENS)
                got.setdefault(name, []).append([s.path for s in seen])

    threads = [threading.Thread(target=follow, args=(name,)) for name in models]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected and clean(*models.values())


# Beside the compiler

SMALL = replace(GPT2, layers=GPT2.layers[:1])
RECORDS = 19  # of SMALL


def compiled(model: nn.Module) -> tuple[Any, list[Any]]:
    """Return a compiled model and the graphs of its compiler; compiling while watching is an error."""
    graphs: list[Any] = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        if tap.here.watches:
            raise RuntimeError("compiled while watched")
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(model, backend=backend), graphs


def test_compiled_then_watched_then_compiled() -> None:
    """The graphs hold no tap; a watched call is recorded and eager, and the next one uses the old graph."""
    model = tiny(SMALL, torch.float32)
    run, graphs = compiled(model)
    first = run(TOKENS)
    before = len(graphs)
    with watch(run) as seen:
        run(TOKENS)
    assert torch.equal(run(TOKENS), first) and len(graphs) == before > 0
    assert len(seen) == RECORDS and clean(model)
    assert not any("tap" in str(n.target) or "watch" in str(n.target) for g in graphs for n in g.graph.nodes)
    eager, (run, graphs) = nullcontext(), compiled(model)
    with swapped(torch.compiler, "set_stance", lambda *_: eager), pytest.raises(Exception, match="compiled while watched"), watch(run):
        run(TOKENS)
    torch._dynamo.reset()


def overlapping(model: nn.Module) -> tuple[int, int, int]:
    """Watch in two threads, of which the first ends first; return the second's records, and the graphs made meanwhile and afterwards."""
    run, graphs = compiled(model)
    a_in, b_in, a_out, records = threading.Event(), threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        with watch(model):
            a_in.set()
            b_in.wait(60)
        a_out.set()

    def second() -> None:
        a_in.wait(60)
        with torch.no_grad(), watch(run) as seen:
            b_in.set()
            a_out.wait(60)
            with suppress(torch._dynamo.exc.BackendCompilerFailed):
                run(TOKENS)
            records.append(len(seen))

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    meanwhile = len(graphs)
    run(TOKENS)
    return records[0], meanwhile, len(graphs) - meanwhile


class Own:
    """A watch that sets the compiler's stance and resets it by itself, the mutant."""

    watches, stance = 0, None

    def __enter__(self) -> None:
        torch.compiler.set_stance("force_eager")

    def __exit__(self, *failure: object) -> None:
        torch.compiler.set_stance("default")


def test_overlapping_watches_share_one_stance() -> None:
    model = tiny(SMALL, torch.float32)
    assert overlapping(model) == (RECORDS, 0, 1)
    with swapped(watching, "EAGER", Own()):
        assert overlapping(model) != (RECORDS, 0, 1)
    torch._dynamo.reset()


# In memory


def left(family: str, **how: Any) -> int:
    """Return the number of records, values and storages that outlive a watch without the garbage collector."""
    model = tiny(family, torch.float32)
    gone: list[weakref.ref[Any]] = []
    gc.collect()
    gc.disable()
    try:
        with torch.set_grad_enabled("grad" in how), watch(model, **how) as seen:
            out = model(*inputs(family))
            if out.requires_grad:
                out.sum().backward()
            gone += [weakref.ref(seen), *(weakref.ref(s) for s in seen), *(weakref.ref(s.value) for s in seen)]
            gone += [weakref.ref(s.value.untyped_storage()) for s in seen]
        assert len(gone) > 90
        del seen, out
        return sum(ref() is not None for ref in gone)
    finally:
        gc.enable()


@pytest.mark.parametrize("how", [{}, {"terms": True}, {"grad": True}, {"edit": {"*norm": lambda x: x * 2}}])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(10)
def test_a_dropped_watch_leaves_no_tensor(family: str, how: dict[str, Any]) -> None:
    assert left(family, **how) == 0


def test_a_dropped_watch_mutants() -> None:
    """Seen are a record that refers to its watch, and a list that is never cleared."""
    right, kept = Watch.record, list[Watch]()

    def cycle(self: Watch, *a: Any) -> None:
        right(self, *a)
        self.seen[-1].watch = self  # type: ignore[attr-defined]

    with swapped(Watch, "record", cycle):
        assert left("llama") > 30
    with swapped(Watch, "require_matches", lambda self: kept.append(self)):
        assert left("llama") > 30


def growth(times: int, kept: list[Watch] | None = None) -> float:
    """Return the MiB that this many watched forwards add, each of which records 3."""
    model, tokens = tiny("gpt2", torch.float32), TOKENS.repeat(12, 5)
    tokens = tokens[:, :48]

    def one() -> Watch:
        with watch(model, terms=True) as seen:
            model(tokens)
        return seen

    assert sum(s.value.nbytes for s in one()) > 3 * 2**20
    for _ in range(10):
        one()
    before = resident()
    for _ in range(times):
        seen = one()
        if kept is not None:
            kept.append(seen)
    return (resident() - before) / 2**20


def test_memory_is_flat() -> None:
    assert growth(200 if FULL else 80) < 30
    assert growth(30, []) > 60
