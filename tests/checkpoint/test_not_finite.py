"""Numbers that are none: found in weights when asked, and in logits always; never a stream of the token that argmax makes of NaN."""

import math
from typing import Any

import pytest
import torch

import pellucid
from covering import FULL
from pellucid.api.model import Model
from pellucid.commands import main
from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.errors import CheckpointError, UseError
from pellucid.watching.watch import watch
from tiny import DECODERS, FAMILIES, ids, swapped, tiny


def spoiled(model: Any, name: str, value: float = math.nan) -> None:
    """One number of one weight."""
    tensor = dict([*model.named_parameters(), *model.named_buffers()])[name]
    with torch.no_grad():
        tensor.view(-1)[tensor.numel() // 2] = value


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(4)
def test_each_weight_in_turn(family: str) -> None:
    """The tensor that is named is made from the weight that was spoiled, or from what such a tensor gave."""
    names = [n for n, _ in (*tiny(family).named_parameters(), *tiny(family).named_buffers())]
    for name in names if FULL else names[::3]:
        model = tiny(family)
        spoiled(model, name)
        prompts, sources = [list(range(97))], [list(range(96, -1, -1))] if family == "t5" else None
        if model.config.positions:
            prompts = [list(range(model.config.positions - 1))]
        if name in ("embed.weight", "positions.weight"):
            continue  # a row that no prompt need meet
        caught = refusal(model, prompts, sources)
        if caught is None:
            assert "ffn." in name or "relative" in name, name  # an expert without tokens, a distance that does not occur
            continue
        with watch(model, keep=lambda x: bool(x.isfinite().all())) as seen, torch.no_grad():
            model(*(torch.tensor(t) for t in (sources, prompts) if t))
        first = next(s for s in seen if not s.value)
        assert caught.key == "generate.finite" and caught.values["path"] == first.path and name in first.weights, name


def refusal(model: Any, prompts: Any, sources: Any) -> UseError | None:
    try:
        list(generate(model, [Request(tuple(p), 1, source=tuple(sources[0]) if sources else None) for p in prompts]))
    except UseError as caught:
        return caught
    return None


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.quick(5)
def test_logits_that_are_no_numbers(family: str, value: float) -> None:
    """All logits of one request at the third step: the error names the request and the step, whatever else is in the batch."""
    model, calls = tiny(family), [0]
    logits = model.logits

    def later(x: torch.Tensor, step: Any) -> torch.Tensor:
        calls[0] += 1
        out = logits(x, step)
        if calls[0] == 3:
            out = out.clone()
            out[0, -1] = value
        return out

    prompts = [ids(1, 5)[0].tolist(), ids(1, 4, seed=3)[0].tolist()]
    with swapped(model, "logits", later):
        run = generate(model, [Request(tuple(p), 5) for p in prompts])
        assert [next(run) for _ in range(4)]
        with pytest.raises(UseError) as caught:
            list(run)
    assert (caught.value.values["request"], caught.value.values["step"]) == (1, 2)


def test_one_request_by_its_plan() -> None:
    """A decode that is replayed is looked at too."""
    model = pellucid.load("pellucid/capitals", dtype="float32")
    prompt = model.tokenizer.encode("The capital of France is")
    model.generate([prompt], 4)
    spoiled(model.module, "layers.2.ffn.up.weight")
    with pytest.raises(UseError, match=r"layers\.2\.ffn\.up"):
        model.generate([prompt], 4)


def test_weights_are_checked_when_asked(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model: Model = pellucid.load("pellucid/capitals", dtype="float32")
    model.check_finite()
    for value in (math.nan, math.inf):
        spoiled(model.module, "layers.1.attn.k.weight", value)
        with pytest.raises(CheckpointError, match=r"layers\.1\.attn\.k\.weight") as caught:
            model.check_finite()
        assert caught.value.values["index"] == [64, 0]
    model.save(tmp_path / "m")
    for command in (["run", str(tmp_path / "m"), "The capital of"], ["explain", str(tmp_path / "m"), "The capital of"]):
        assert main([*command, "--check-finite"]) == 2
        assert "layers.1.attn.k.weight" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "m"), "The capital of"]) == 2
    assert "layers.1.attn.k" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "m"), "The capital of"]) == 0, "explain shows where it begins"
    assert "NaN" in capsys.readouterr().out
