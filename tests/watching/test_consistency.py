"""Records are what ran: patterns and values give the output, components the residual, the last norm the logits, and patches take effect.

A text's score is the sum of its tokens' log-probabilities in every way of running it.
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid import ops
from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.step import Step
from pellucid.nn.block import Block
from pellucid.ops.sampling.stages import logprobs
from pellucid.watching.records import Seen
from pellucid.watching.watch import Watch, watch
from tiny import DECODERS, FAMILIES, far, ids, inputs, law, serve, tiny

attend = importlib.import_module("pellucid.ops.attend")  # the package names a function so
sample = importlib.import_module("pellucid.ops.sampling.stages")
sdpa, add, see, change, summed = attend.attend_sdpa, ops.add, Watch.see, Watch.change, Block.sum
TOKENS = ids(1, 9)


def recorded(family: str, **how: Any) -> tuple[Any, dict[str, Seen], Tensor]:
    """Return a model, its records and its logits."""
    model = tiny(family)
    with torch.no_grad(), watch(model, **how) as seen:
        out = model(*inputs(family))
    return model, {s.path: s for s in seen}, out


@law(1e-10, off=(attend, "attend_sdpa", lambda *a: sdpa(*a) * 1.001), unscaled=(attend, "attend_sdpa", lambda *a: sdpa(*a[:-1], 1.0)))
def test_23_pattern_times_values() -> float:
    """Rows of a pattern sum to 1 (with a sink, to less), are never negative, 0 where masked; times the values they give z."""
    gaps = []
    for family in FAMILIES:
        _, seen, _ = recorded(family)
        for path, s in seen.items():
            if not path.endswith(".pattern"):
                continue
            part = path.removesuffix(".pattern")
            v = seen[f"{part}.v"].value
            pattern, n = s.value, s.value.shape[1] // v.shape[2]
            gaps.append(far(torch.einsum("bhts,bshw->bthw", pattern, v.repeat_interleave(n, 2)), seen[f"{part}.z"].value))
            total = pattern.sum(-1)
            wrong = (total >= 1) | (total <= 0) if family == "gpt_oss" else (total - 1).abs() > 1e-12
            gaps.append(float(wrong.any() or (pattern < 0).any()))
            if "cross" not in path and not path.startswith("encoder"):
                gaps.append(float(pattern.triu(1).abs().max()))
    return max(gaps)


def test_23_uniform_without_queries() -> None:
    """With q = 0 all visible tokens have equal weights."""
    model = tiny("llama")
    with torch.no_grad(), watch(model, edit={"layers.*.attn.q_rot": torch.zeros_like}, inside="reference") as seen:
        model(TOKENS)
    expected = torch.ones(9, 9, dtype=torch.float64).tril() / torch.arange(1, 10)[:, None]
    assert far(seen["layers.1.attn.pattern"].value[0], expected.expand(4, -1, -1)) < 1e-12


def in_place(x: Tensor, y: Tensor) -> Tensor:
    """Add in place, over what was recorded."""
    return add(x, y) if torch.is_grad_enabled() else x.add_(y)


def unsaid(self: Block, x: Tensor, part: str, total: str, step: Step) -> Tensor:
    """Write more to the residual than is recorded."""
    return summed(self, x, part, total, step) * 1.001


@law(0.0, in_place=(ops, "add", in_place), unsaid=(Block, "sum", unsaid))
def test_24_logit_lens() -> float:
    """Bit for bit, the head of the recorded norm is the logits, the norm of the recorded residual the norm, each sum its summands."""
    wrong = 0
    for family in FAMILIES:
        model, seen, out = recorded(family)
        stacks = {"encoder.": model.encoder, "decoder.": model.decoder} if family == "t5" else {"": model}
        with torch.no_grad():
            last = seen["head_scaled" if family == "t5" else "norm"].value
            wrong += not torch.equal(model.head(last), out)
            for name, stack in stacks.items():
                x = seen["source" if name == "encoder." else "embed" if "start" not in seen else "start"].value
                for i in range(len(stack.layers)):
                    at = f"{name}layers.{i}"
                    for part, total in (("attn", "mid"), ("cross", "crossed"), ("ffn", "out")):
                        if f"{at}.{part}" in seen:
                            wrong += not torch.equal(x + seen[f"{at}.{part}"].value, seen[f"{at}.{total}"].value)
                            x = seen[f"{at}.{total}"].value
                wrong += not torch.equal(stack.norm(x), seen[f"{name}norm"].value)
    return float(wrong)


@law(1e-10, in_place=(ops, "add", in_place), unsaid=(Block, "sum", unsaid))
def test_24_components_sum_to_the_residual() -> float:
    """The embedding and every part's output, in any order, sum to the last residual."""
    gaps = []
    for family in DECODERS:
        model, seen, _ = recorded(family)
        parts = [seen[f"layers.{i}.{part}"].value for i in range(len(model.layers)) for part in ("ffn", "attn")]
        total = sum(parts) + seen["start" if "start" in seen else "embed"].value
        gaps.append(far(total, seen[f"layers.{len(model.layers) - 1}.out"].value))
    return max(gaps)


def edit_lost(self: Watch, x: Tensor, *rest: Any) -> None:
    change(self, x, *rest)


def halved(self: Watch, x: Tensor, *rest: Any) -> tuple[Any, Tensor] | None:
    """Return half of what the edit was given."""
    changed = change(self, x, *rest)
    return changed if changed is None or not x.is_floating_point() else (changed[0], changed[1] * 0.5)


@law(0.0, halved=(Watch, "change", halved))
def test_25_identity_patch() -> float:
    """Replacing every recorded tensor by its copy changes no bit, all at once and in float32 too."""
    wrong = 0
    for family in FAMILIES:
        for dtype in (torch.float64, torch.float32):
            model = tiny(family, dtype)
            with torch.no_grad():
                plain = model(*inputs(family))
                with watch(model) as seen:
                    model(*inputs(family))
                edit = {s.path: torch.clone for s in seen if s.source == "executed"}
                with watch(model, edit=edit):
                    wrong += not torch.equal(model(*inputs(family)), plain)
    return float(wrong)


@law(0.0, lost=(Watch, "change", edit_lost))
def test_25_patch_from_another_run() -> float:
    """A run that gets another's residual continues as that one, bit for bit; in its last row alone, there alone."""
    wrong = 0
    for family in DECODERS:
        model, other, middle = tiny(family), TOKENS.flip(1), f"layers.{len(tiny(family).layers) // 2 - 1}.out"
        with torch.no_grad():
            with watch(model, only=middle) as seen:
                wanted = model(other)
            taken = seen[middle].value
            with watch(model, edit={middle: lambda x, taken=taken: taken}):
                wrong += not torch.equal(model(TOKENS), wanted)
            last = lambda x, taken=taken: torch.cat([x[:, :-1], taken[:, -1:]], 1)  # noqa: E731
            with watch(model, edit={middle: last}):
                out = model(TOKENS)
            wrong += far(out[:, :-1], model(TOKENS)[:, :-1]) > 1e-12 or far(out, model(TOKENS)) < 1e-6
    return float(wrong)


@law(1e-12, lost=(Watch, "change", edit_lost))
def test_25_zero_ablation() -> float:
    """A part's output set to 0 equals last weights of 0; one head's, those columns of o."""
    gaps = []
    for family in DECODERS:
        cut = tiny(family)
        with torch.no_grad(), watch(cut, edit={"layers.1.attn": torch.zeros_like}):
            ablated = cut(TOKENS)
        with torch.no_grad(), watch(cut, edit={"layers.1.attn.z": lambda z: z * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]}):
            headless = cut(TOKENS)
        with torch.no_grad():
            o = cut.layers[1].attn.o
            width = o.weight.shape[1] // 4
            o.weight[:, width : 2 * width] = 0
            gaps.append(far(cut(TOKENS), headless))
            for p in o.parameters():
                p.zero_()
            gaps.append(far(cut(TOKENS), ablated))
    return max(gaps)


def masked_loss(logits: Tensor, tokens: Tensor, ignored: Tensor) -> float:
    """Return the mean negative log-softmax at the next token, where it is not ignored."""
    total, count = 0.0, 0
    for t in range(tokens.shape[1] - 1):
        if not ignored[0, t + 1]:
            row = logits[0, t]
            total -= float(row[tokens[0, t + 1]] - row.max() - (row - row.max()).exp().sum().log())
            count += 1
    return total / count


@law(unshifted=(sample, "logprobs", lambda logits: logprobs(logits.roll(1, -2))), unnormed=(sample, "logprobs", lambda logits: logits))
def test_29_loss() -> float:
    """The loss is that of shifted labels, with and without ignored ones."""
    model, gaps = tiny("llama"), []
    with torch.no_grad():
        logits = model(TOKENS)
        for ignored in (torch.zeros(1, 9, dtype=torch.bool), torch.arange(9)[None] < 4):
            picked = sample.logprobs(logits)[:, :-1].gather(-1, TOKENS[:, 1:, None])[..., 0]
            gaps.append(abs(float(-picked[~ignored[:, 1:]].mean()) - masked_loss(logits, TOKENS, ignored)))
    return max(gaps)


def test_29_gradients_add_up_by_tokens() -> None:
    """Micro-batches of different lengths add up to one batch if weighted by tokens; a mean of means does not."""
    texts = [ids(1, n, seed=n) for n in (3, 9, 5)]
    grads = []
    for way in ("packed", "by tokens", "mean of means"):
        model = tiny("llama")
        if way == "packed":
            out = model(torch.cat(texts, 1), Step.packed([3, 9, 5]))[0].split([3, 9, 5])
            each = [F.cross_entropy(o[:-1], t[0, 1:], reduction="sum") for o, t in zip(out, texts, strict=True)]
            (sum(each) / 14).backward()
        for t in texts if way != "packed" else ():
            value = F.cross_entropy(model(t)[0, :-1], t[0, 1:], reduction="sum")
            (value / 14 if way == "by tokens" else value / (t.shape[1] - 1) / 3).backward()
        grads.append(model.layers[0].ffn.down.weight.grad)
    assert far(grads[0], grads[1]) < 1e-12 and far(grads[0], grads[2]) > 1e-4


@law(unnormed=(sample, "logprobs", lambda logits: logits * (logits.shape[-2] + 1.0)))
def test_32_log_likelihoods() -> float:
    """Decoding over pages and one forward give the same score, and the probabilities of all next tokens sum to 1."""
    gaps = []
    with torch.no_grad():
        for family in DECODERS:
            model = tiny(family)
            score = sample.logprobs(model(TOKENS))[0, :-1].gather(-1, TOKENS[0, 1:, None]).sum()
            rows = serve(model, {0: TOKENS[0]}, [{0: 1}] * 9, PagedCache(8, 2))[0]
            streamed = sum(float(sample.logprobs(rows[t : t + 1])[0, TOKENS[0, t + 1]]) for t in range(8))
            gaps.append(abs(float(score) - streamed))
            gaps.append(abs(float(logprobs(rows).exp().sum(-1).sub(1).abs().max())))
    return max(gaps)
