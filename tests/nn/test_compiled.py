"""One model in every way to run it: the reference, torch's fused kernels, pages, the native kernels, torch.compile.

What torch.compile generates in C++ takes half a minute and is compared with PELLUCID_FULL=1; its graphs always are.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import FULL
from pellucid.batch.kv_cache import PagedCache
from pellucid.config import Config
from pellucid.ops import native
from pellucid.watching.watch import watch
from tiny import DECODERS, FAMILIES, LLAMA, far, ids, inputs, law, serve, swapped, tiny

attend = importlib.import_module("pellucid.ops.attend")  # the package names functions like their modules
experts = importlib.import_module("pellucid.ops.experts")
latent = importlib.import_module("pellucid.ops.latent")
sdpa, by_pages, linear = attend.attend_sdpa, attend.attend_pages, native.linear
SMALL = replace(LLAMA, layers=LLAMA.layers[:1])
ASKED = ("gpt2", "llama", "qwen3") if FULL else ("gpt2", "qwen3")
DENSE = [replace(FAMILIES[f], layers=FAMILIES[f].layers[:1]) for f in ASKED]  # a layer: tracing takes its time
TOKENS = ids(11)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def opened(model: nn.Module, *args: Tensor) -> Tensor:
    """Return the logits with reference attention and every other op torch's."""
    with native.off(), watch(model, only="*.pattern", inside="reference"):
        return model(*args)  # type: ignore[no-any-return]


def off(*a: Any) -> Tensor:
    return sdpa(*a) * 1.1  # type: ignore[no-any-return]


@law(
    off=(attend, "attend_sdpa", off),
    off_latent=(latent, "attend_sdpa", off),
    unscaled=(attend, "attend_sdpa", lambda *a: sdpa(*a[:-1], 1.0)),
)
def test_26_fused_is_open() -> float:
    """torch's fused attention equals the reference, with every mask, bias and sink of the families."""
    return max(far(tiny(f)(*inputs(f)), opened(tiny(f), *inputs(f))) for f in FAMILIES)


@law(off=(attend, "attend_pages", lambda *a: by_pages(*a) * 1.1), off_latent=(latent, "attend_sdpa", off))
def test_26_pages_are_open() -> float:
    """Reading one token at a time over pages equals the reference, where a latent is absorbed."""
    gaps = []
    for f in DECODERS:
        model = tiny(f)
        rows = serve(model, {0: TOKENS}, [{0: 1}] * len(TOKENS), PagedCache(8, 2))[0]
        gaps.append(far(rows, opened(model, TOKENS[None])[0]))
    return max(gaps)


def error(f: str | Config, rows: Tensor) -> float:
    """Return how far these logits of TOKENS [T V] are from float64's, relative to the largest."""
    truth = opened(tiny(f), TOKENS[None])[0]
    return far(rows, truth) / float(truth.abs().max())


KERNELS: dict[str, Any] = {"off": (native, "linear", lambda *a: linear(*a) * 1.1)} if native.available() else {}


@law(1e-5, **KERNELS)
def test_26_kernels_are_open() -> float:
    """In float32 the native kernels, for a prompt at once or by token, and torch's are near float64's reference."""
    gaps = []
    for f in DECODERS:
        model = tiny(f, torch.float32)
        each = serve(model, {0: TOKENS}, [{0: 1}] * len(TOKENS), PagedCache(8, 2))[0]
        gaps += [error(f, x) for x in (model(TOKENS[None])[0], each, opened(model, TOKENS[None])[0])]
    return max(gaps)


def compiled(model: nn.Module, *args: Tensor, backend: str = "aot_eager", fullgraph: bool = True) -> Tensor:
    """Return the logits of a compiled model, which is one graph; fullgraph=False where a choice by numbers parts it, as of experts."""
    torch._dynamo.reset()
    return torch.compile(model, backend=backend, fullgraph=fullgraph)(*args)  # type: ignore[no-any-return]


def off_compiled(*a: Any) -> Tensor:
    """Make a change that only the compiler reads."""
    return sdpa(*a) * (1.1 if torch.compiler.is_compiling() else 1.0)  # type: ignore[no-any-return]


@law(off=(attend, "attend_sdpa", off_compiled))
def test_26_traced_is_open() -> float:
    """The graphs of torch.compile equal the reference in float64."""
    return max(far(compiled(tiny(cfg), *inputs("llama")), opened(tiny(cfg), *inputs("llama"))) for cfg in DENSE)


@law(1e-5, off=(attend, "attend_sdpa", off_compiled))
def test_26_traced_is_open_in_float32() -> float:
    """In float32, where the model itself runs native kernels, the graphs hold torch ops only."""
    return max(error(cfg, compiled(tiny(cfg, torch.float32), TOKENS[None])[0]) for cfg in DENSE)


@pytest.mark.skipif(not os.environ.get("PELLUCID_FULL"), reason="PELLUCID_FULL=1 compiles C++")
@law(off=(attend, "attend_sdpa", off_compiled))
def test_26_compiled_is_open() -> float:
    """Inductor's C++ equals the reference; one layer and no vectors, which take the compiler longest."""
    quick: dict[str, Any] = {"compile_threads": 1, "cpp.simdlen": 1}
    with importlib.import_module("torch._inductor.config").patch(quick):
        return far(compiled(tiny(SMALL), TOKENS[None], backend="inductor"), opened(tiny(SMALL), TOKENS[None]))


@pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 traces experts, twice")
def test_26_experts_are_traced_in_float32() -> None:
    """Experts are traced in float32, which torch's grouped product rejects in tracing before 2.15."""
    args = inputs("deepseek_v3")
    model = tiny(replace(FAMILIES["deepseek_v3"], layers=FAMILIES["deepseek_v3"].layers[-1:]), torch.float32)
    assert far(compiled(model, *args, fullgraph=False), model(*args)) < 1e-4
    refused = pytest.raises(Exception, match=r"BF(loat)?16") if torch.__version__ < "2.15" else nullcontext()
    with swapped(experts, "fits_grouped_mm", lambda rows, weight: rows.dtype is torch.float32), refused:
        assert far(compiled(model, *args, fullgraph=False), model(*args)) < 1e-4
