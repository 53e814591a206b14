"""Tiny random models of every family, a batch that runs them, and laws with the mutants that must break them.

Weights are wide enough that attention is far from uniform, and no bias is 0 and no norm is 1: otherwise wrong masks and forgotten biases
would pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid.api.model import make
from pellucid.batch.kv_cache import PagedCache, Span
from pellucid.batch.step import Step
from pellucid.nn.transformer import Decoder, EncoderDecoder, build

V, D = 97, 32
MLP = c.Mlp(48)
EXPERTS = c.Moe(8, 2, 16, shared=16, groups=4, groups_chosen=2, scale=2.5)
MLA = c.Latent(4, 24, 20, 16, 12, c.Rope(8, interleaved=True))
HEARING = c.Attention(4, 4, 8, scale=1.0, causal=False)
BUCKETED = c.Attention(4, 4, 8, scale=1.0, buckets=c.Buckets(8, 16, False))
LISTENING = c.Attention(4, 4, 8, scale=1.0, causal=False, buckets=c.Buckets(8, 16, True))
SUNK = c.Attention(4, 2, 16, c.Rope(16, 150_000.0), bias=True, out_bias=True, sinks=True)
CLAMPED = c.Moe(4, 2, 16, affinity="softmax", corrected=False, bias=True, act="clamped")
GATED = c.Moe(8, 3, 16, shared=20, affinity="softmax", corrected=False, normalised=False, shared_gate=True)
GROUPED = c.Moe(8, 3, 16, affinity="softmax", corrected=False, groups=4, groups_chosen=2, group_best=1, scale=1.5)
BIASED = c.Attention(4, 2, 8, c.Rope(8), bias=True)

GPT2 = c.Config(
    V, D, (c.Layer(c.Attention(4, 4, 8, bias=True, out_bias=True), c.Mlp(64, "gelu_tanh", False, True)),) * 2, True, 1e-5, "layer", 64
)  # fmt: skip
LLAMA = c.Config(V, D, (c.Layer(c.Attention(4, 2, 8, c.Rope(8, 5e5, scaling=c.Llama3(8.0, 1.0, 4.0, 64))), MLP),) * 2)
QWEN3 = c.Config(V, D, (c.Layer(c.Attention(4, 2, 16, c.Rope(16, 1e6), qk_norm=True), MLP),) * 2, tied=True, eps=1e-6)
DEEPSEEK_V3 = c.Config(V, D, (c.Layer(MLA, MLP), c.Layer(MLA, EXPERTS), c.Layer(MLA, EXPERTS)), eps=1e-6)
GPT_OSS = c.Config(V, D, (c.Layer(c.Attention(4, 2, 16, SUNK.rope, False, True, True, 4, True), CLAMPED), c.Layer(SUNK, CLAMPED)))
T5 = c.Config(
    V, D, (c.Layer(BUCKETED, c.Mlp(48, "relu", False), HEARING),) * 3, True, 1e-6, logit_scale=D**-0.5,
    encoder=(c.Layer(LISTENING, c.Mlp(48, "relu", False)),) * 2,
)  # fmt: skip
QWEN2_MOE = c.Config(V, D, (c.Layer(BIASED, GATED), c.Layer(BIASED, GROUPED)), eps=1e-6)  # and DeepSeek-V2's groups
DECODERS = {"gpt2": GPT2, "llama": LLAMA, "qwen3": QWEN3, "deepseek_v3": DEEPSEEK_V3, "gpt_oss": GPT_OSS, "qwen2_moe": QWEN2_MOE}
FAMILIES = {**DECODERS, "t5": T5}

Model = Decoder | EncoderDecoder
Feed = Callable[..., Tensor]
Mutant = tuple[Any, str, Any]  # owner, name, and what stands in for it


def tiny(cfg: c.Config | str, dtype: torch.dtype = torch.float64, seed: int = 0, std: float = 0.3) -> Any:
    """Return a random model of a config or family. One seed gives the same numbers in every dtype, rounded."""
    model = build(FAMILIES[cfg] if isinstance(cfg, str) else cfg).eval()
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        value = torch.randn(p.shape, generator=draw, dtype=torch.float64) * std
        p.data = (value + (p.ndim == 1 and "norm" in name)).to(dtype)
    for b in model.buffers():
        b.copy_(torch.randn(b.shape, generator=draw) * 0.2)
    return model


def random_folder(hf: Mapping[str, Any], folder: Path, seed: int = 0, std: float = 0.1) -> None:
    """Save a random model of a config.json's fields into `folder`."""
    model, draw = make(dict(hf)), torch.Generator().manual_seed(seed)
    for name, p in model.module.named_parameters():
        p.data = (torch.randn(p.shape, generator=draw) * std + (p.ndim == 1 and "norm" in name)).to(p.dtype)
    model.save(folder)


def ids(*shape: int, seed: int = 0) -> Tensor:
    """Return random token ids."""
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed + 100))


def has_encoder(family: str) -> bool:
    """True if the family has an encoder."""
    return FAMILIES[family].encoder is not None


def inputs(family: str, rows: int = 2, length: int = 11) -> tuple[Tensor, ...]:
    """Return arguments for a model of this family: tokens, and before them a source of another length if it has an encoder."""
    return (ids(rows, 7, seed=1), ids(rows, length)) if has_encoder(family) else (ids(rows, length),)


def far(a: Tensor, b: Tensor) -> float:
    """Return the largest difference. Tensors of two shapes, and NaN, are infinitely far."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    return float((a.double() - b.double()).abs().nan_to_num(float("inf")).max())


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set `owner.name` to `value` while the context is open: a mutant."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def without(part: type[nn.Module], name: str, forward: str = "forward") -> Mutant:
    """Return the mutant that runs every `part` as if it had no `name`."""
    right = getattr(part, forward)

    def run(self: nn.Module, *args: Any) -> Any:
        kept = getattr(self, name)
        setattr(self, name, None)
        try:
            return right(self, *args)
        finally:
            setattr(self, name, kept)

    return part, forward, run


def law(bound: float = 1e-10, **mutants: Mutant) -> Callable[[Callable[[], float]], Callable[[str], None]]:
    """Make a test of a function that measures an error, which stays below `bound` and which each mutant lifts far above."""

    def made(error: Callable[[], float]) -> Callable[[str], None]:
        @pytest.mark.parametrize("mutant", ["", *mutants])
        def test(mutant: str) -> None:
            if not mutant:
                assert error() <= bound
            else:
                with swapped(*mutants[mutant]):
                    assert error() > max(1e-6, 100 * bound)

        test.__name__, test.__doc__ = error.__name__, error.__doc__
        return test

    return made


def together(sources: Sequence[Tensor], names: Sequence[object]) -> tuple[Tensor, Step]:
    """Return sources end to end in one row, and the step that keeps each alone."""
    step, stop = Step.packed([len(s) for s in sources]), 0
    spans = []
    for name, s in zip(names, sources, strict=True):
        spans.append(Span(name, stop, stop := stop + len(s)))
    step.spans = tuple(spans)
    return torch.cat(list(sources))[None], step


def serve(
    model: Model,
    prompts: Mapping[Any, Tensor],
    plan: Sequence[Mapping[Any, int]],
    pages: PagedCache | None = None,
    feed: Feed | None = None,
    sources: Mapping[Any, Tensor] | None = None,
) -> dict[Any, Tensor]:
    """Run a plan's steps, {request: new rows} each. Returns every request's logits [T V]. feed(*arguments): instead of the model."""
    pages, feed, got = pages or PagedCache(), feed or model, dict[Any, list[Tensor]]()
    for chunks in plan:
        new = [r for r in chunks if r not in pages.length]
        step = Step.paged(pages, chunks)
        rows = torch.cat([prompts[s.request][s.before : s.end] for s in step.spans])[None]
        arguments: tuple[Any, ...] = (rows, step)
        if sources is not None:
            source, source_step = together([sources[r] for r in new], new) if new else (None, None)
            arguments = (source, rows, step, source_step)
        out = feed(*arguments)
        for s in step.spans:
            got.setdefault(s.request, []).append(out[0, s.start : s.stop])
        step.advance()
    return {r: torch.cat(o) for r, o in got.items()}
