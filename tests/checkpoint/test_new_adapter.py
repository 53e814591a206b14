"""New adapters, trained: PEFT reads what is written, and has the same logits, gradients and weights after steps of AdamW."""

import copy
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pellucid
from adapters import fresh
from judge import judge, promoted, prompts, run
from pellucid.api.model import Model, load
from pellucid.checkpoint import adapter as adapting
from pellucid.checkpoint import new_adapter
from pellucid.commands import main
from pellucid.errors import PellucidError
from pellucid.nn.adapted import Addition
from pellucid.ops.blocks import Blocks
from tiny import swapped

TARGETS = {
    "llama": ["layers.*.attn.[qv]", "layers.*.ffn.down"],
    "gpt2": ["attn.[qkv]", "ffn.up"],
    "qwen3": ["layers.0.*"],
    "deepseek_v3": ["attn.q_b", "attn.kv_b", "attn.o"],
    "t5": ["decoder.layers.*.attn.q", "cross.v", "encoder.layers.*.ffn.up"],
}
RATE, STEPS = 1e-2, 20


def made(family: str) -> Model:
    """Return a model with a new adapter whose B is not zero, in float64."""
    model = load(judge(family).folder, dtype="float64")
    model.lora(3, TARGETS[family], "mine", alpha=7)
    draw = torch.Generator().manual_seed(5)
    for name, p in model.module.named_parameters():
        if "lora_b" in name:
            p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64) * 0.3
    return model


def theirs(family: str, folder: Path) -> Any:
    """Return PEFT's model with the adapter of a folder, to be trained, in float64."""
    with promoted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(copy.deepcopy(judge(family).hf), folder, is_trainable=True).double().eval()


@cache
def pair(family: str) -> tuple[Model, Any]:
    """Return our model and PEFT's with the adapter that we wrote. Tests share them: do not change them."""
    model, folder = made(family), fresh()
    model.save_adapter(folder)
    return model, theirs(family, folder)


def lines(model: Model) -> dict[str, Tensor]:
    """Return the adapter's tensors by their names in PEFT's file."""
    return {n: t.detach() for n, t in adapting.tensors(model.module, model.adapters["mine"]).items()}


def named(model: Any) -> dict[str, nn.Parameter]:
    """Return PEFT's parameters of the adapter by the names of its file."""
    return {n.replace(".default.", "."): p for n, p in model.named_parameters() if "lora_" in n}


def loss(logits: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(logits[..., 0].numel()) % logits.shape[-1])


def ours(model: Model, ids: tuple[Tensor, ...]) -> Tensor:
    return loss(model(*ids))


def judged(model: Any, ids: tuple[Tensor, ...]) -> Tensor:
    with promoted():
        return loss(run(model, *ids))


def gradients(model: Model, ids: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return the gradients of an adapter by their names in PEFT's file: those of B lie as B does."""
    model.module.zero_grad()
    ours(model, ids).backward()
    other = copy.deepcopy(model.module)
    for (_, p), (_, q) in zip(model.module.named_parameters(), other.named_parameters(), strict=True):
        q.data = q if p.grad is None else p.grad
    return {n: t.detach() for n, t in adapting.tensors(other, model.adapters["mine"]).items()}


@pytest.mark.parametrize("family", TARGETS)
def test_logits_and_gradients_are_those_of_peft(family: str) -> None:
    model, other = pair(family)
    ids = prompts(family)
    assert abs(float((ours(model, ids) - judged(other, ids)).detach())) < 1e-10
    other.zero_grad()
    judged(other, ids).backward()
    own, wanted = gradients(model, ids), named(other)
    assert own.keys() == wanted.keys() and len(own) > 3
    for name, p in wanted.items():
        assert p.grad is not None and float((own[name] - p.grad).abs().max()) < 1e-10, name
    frozen = [n for n, p in model.module.named_parameters() if "adapters" not in n]
    assert all(model.module.get_parameter(n).grad is None for n in frozen)


def test_a_wrong_scale_is_seen() -> None:
    """Mutant: alpha / rank² in place of alpha / rank."""
    model, other = pair("llama")
    ids = prompts("llama")
    wrong = copy.deepcopy(model.module)
    for m in wrong.modules():
        if isinstance(m, Addition):
            m.scale /= 3
    with torch.no_grad():
        assert abs(float(loss(wrong(*ids))) - float(judged(other, ids))) > 1e-6


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_steps_of_adamw_are_those_of_peft(family: str) -> None:
    """Twenty of them; and what is written then is what PEFT holds."""
    model, folder = made(family), fresh()
    model.save_adapter(folder)
    other, ids = theirs(family, folder), prompts(family)
    trained = [p for p in model.module.parameters() if p.requires_grad]
    for optimizer, forward in (
        (torch.optim.AdamW(trained, RATE), lambda: ours(model, ids)),
        (torch.optim.AdamW([p for p in other.parameters() if p.requires_grad], RATE), lambda: judged(other, ids)),
    ):
        for _ in range(STEPS):
            optimizer.zero_grad()
            forward().backward()
            optimizer.step()
    model.save_adapter(folder, overwrite=True)
    stored = load_file(folder / "adapter_model.safetensors")
    for name, p in named(other).items():
        assert float((stored[name] - p.detach()).abs().max()) < 1e-9
    with torch.no_grad():
        assert abs(float(ours(load(judge(family).folder, dtype="float64", adapter=folder), ids)) - float(judged(other, ids))) < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("family", TARGETS)
def test_at_first_nothing_changes(family: str) -> None:
    """B is zero, A is uniform within PEFT's bound by a seed of its own, the base is frozen, and taking it off leaves no trace."""
    model, ids = load(judge(family).folder, dtype="float32"), prompts(family)
    before = model(*ids)
    model.lora(4, TARGETS[family], seed=3)
    assert torch.equal(model(*ids), before)
    low = {n: p for n, p in model.module.named_parameters() if p.requires_grad}
    assert low and all("adapters.default.lora_" in n for n in low)
    for name, p in low.items():
        assert "lora_b" not in name or not p.any()
        assert "lora_a" not in name or 0.5 < float(p.abs().max()) * p.shape[1] ** 0.5 <= 1
    again = load(judge(family).folder, dtype="float32")
    again.lora(4, TARGETS[family], seed=4)
    assert any(not torch.equal(p, again.module.get_parameter(n)) for n, p in low.items())
    model.unadapt()
    assert torch.equal(model(*ids), before) and not any("adapters" in n for n, _ in model.module.named_parameters())


def test_targets_as_peft_reads_them() -> None:
    """The shortest ends of names that mean these layers and no others; all layers of a kind are one end."""

    def names(family: str, *targets: str) -> list[str]:
        model = load(judge(family).folder)
        model.lora(2, targets)
        out: list[str] = model.adapters["default"].settings["target_modules"]
        return out

    assert names("llama", "layers.*.attn.[qv]") == ["q_proj", "v_proj"]
    assert names("llama", "layers.1.attn.q") == ["1.self_attn.q_proj"]
    assert names("gpt2", "attn.o") == ["attn.c_proj"]  # c_proj alone would be the network's, too
    with swapped(new_adapter, "ending", lambda path, others: path.rpartition(".")[2]):
        assert names("gpt2", "attn.o") == ["c_proj"]


REFUSED = [
    ({"targets": ["attn.qkv"]}, "attn.qkv"),
    ({"targets": ["head"]}, "tied"),
    ({"targets": ["attn.q"]}, "attn.k, layers.0.attn.v"),
    ({"rank": 0}, "rank is 0"),
    ({"rank": 2.5}, "rank is 2.5"),
    ({"name": "a b"}, "a b"),
]


@pytest.mark.parametrize(("how", "part"), REFUSED)
def test_refused(how: dict[str, Any], part: str) -> None:
    """In one line, with the model as it was."""
    model = load(judge("gpt2").folder)
    with pytest.raises(PellucidError, match=part) as caught:
        model.lora(**{"rank": 2, "targets": ["attn.[qkv]"], **how})
    assert "\n" not in str(caught.value) and not model.adapters and not any("lora" in n for n, _ in model.module.named_parameters())


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_gradients_through_blocks(form: str) -> None:
    """A base in blocks gives the adapter the gradients of the plain base with the blocks' values."""
    packed, plain = (load("pellucid/capitals-llama", dtype="float64", quant=form) for _ in range(2))
    adapting.plain(plain.module)
    assert packed.quant == form and plain.quant is None and plain.module.head.weight is plain.module.embed.weight
    ids = (torch.tensor([packed.ids("The capital of France is")]),)
    gradient = []
    for model in (packed, plain):
        model.lora(2, ["attn.[qv]", "ffn.*"], "mine")
        for name, p in model.module.named_parameters():
            if "lora_b" in name:
                p.data += 0.1
        gradient.append(gradients(model, ids))
    assert all(float((gradient[0][n] - gradient[1][n]).abs().max()) < 1e-10 for n in gradient[0]) and any(
        g.any() for g in gradient[0].values()
    )
    assert any(isinstance(p, Blocks) for p in packed.module.parameters())
    exact = load("pellucid/capitals-llama", dtype="float64")  # mutant: the weights before they were rounded
    exact.lora(2, ["attn.[qv]", "ffn.*"], "mine")
    assert any(float((gradients(exact, ids)[n] - g).abs().max()) > 1e-6 for n, g in gradient[0].items())


@pytest.mark.parametrize("quant", [None, "int8"])
def test_merge_command(quant: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder computes what the adapted model does, onto the weights or onto what their blocks hold."""
    model = load("pellucid/capitals-llama", dtype="float32", quant=quant)
    model.lora(3, ["attn.[qkvo]"])
    draw = torch.Generator().manual_seed(2)
    for name, p in model.module.named_parameters():
        if "lora_b" in name:
            p.data = torch.randn(p.shape, generator=draw) * 0.2
    model.save_adapter(tmp_path / "adapter")
    (tmp_path / "adapter" / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    words = ["merge", "pellucid/capitals-llama", tmp_path / "adapter", "--save", tmp_path / "whole", "--dtype", "float32"]
    assert main([*map(str, words), *(["--quant", quant] if quant else []), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "model": str(tmp_path / "whole")}
    ids = torch.tensor([model.ids("The capital of France is")])
    with torch.no_grad():
        joined = pellucid.load(tmp_path / "whole", dtype="float32")
        other = load("pellucid/capitals-llama", dtype="float32", quant=None if quant else "int8")
        other.adapt(tmp_path / "adapter")
        for each in (model, other):  # kernels for blocks round the rows too
            adapting.plain(each.module)
        assert float((joined(ids) - model(ids)).abs().max()) < 1e-4 < 1e-3 < float((other(ids) - joined(ids)).abs().max())
    assert joined.tokenizer.templates and not joined.adapters
    assert main([*map(str, words)]) == 2 and "whole" in capsys.readouterr().err


def test_merge_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in (
        (["pellucid/capitals", tmp_path / "no", "--save", tmp_path / "x"], "no"),
        (["pellucid/capitals", tmp_path, "--save", tmp_path / "x"], "adapter_config.json"),
        (["pellucid/nix", tmp_path, "--save", tmp_path / "x"], "pellucid/nix"),
        (["pellucid/capitals", tmp_path], "--save"),
        (["pellucid/capitals", tmp_path, "--save", tmp_path / "x", "--dtype", "int3"], "int3"),
    ):
        for language in ("en", "zh"):
            assert main(["merge", *map(str, words), "--lang", language]) == 2
            line = capsys.readouterr().err
            assert line.count("\n") == 1 and part in line and not (tmp_path / "x").exists()
