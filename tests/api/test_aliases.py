"""Other names of tensors and weights: each leads to what the other library has under it, and nothing is recorded twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import judge as judges
import pellucid
from pellucid.api.model import Model, load
from pellucid.commands import main
from pellucid.errors import TraceError, UseError
from pellucid.families import aliases as naming
from pellucid.families.aliases import aliases, put
from tiny import far, swapped

PROMPT = "The capital of France is"


def recorded(model: Model, family: str) -> Any:
    """What one batch of the family records."""
    with torch.no_grad(), pellucid.watch(model) as seen:
        model(*judges.prompts(family))
    return seen


def theirs(family: str, names: set[str]) -> dict[str, list[list[Tensor]]]:
    """What transformers' modules of these names give for the same batch, call by call."""
    j = judges.judge(family)
    outputs: dict[str, list[list[Tensor]]] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, args: Any, out: Any) -> None:  # a copy: some go on by adding into their output
            given = out if isinstance(out, tuple | list) else (out,)
            outputs.setdefault(name, []).append([x.clone() for x in given if isinstance(x, Tensor)])

        return hook

    hooks = [m.register_forward_hook(keep(name)) for name, m in j.hf.named_modules() if name in names]
    try:
        with torch.no_grad(), judges.promoted():
            judges.run(j.hf, *judges.prompts(family))
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def wrong(family: str) -> list[str]:
    """Transformers' names under which a tensor of ours differs from the output of theirs, by cells in whatever order they are fused."""
    model = load(judges.judge(family).folder)
    table, seen = aliases(model.module, model.family), recorded(model, family)
    out = []
    for name, calls in theirs(family, set(table)).items():
        if len(calls) != 1 or any(len(seen.all(p)) != 1 for p in table[name]):
            continue  # called several times, as a table of two stacks
        ours = torch.cat([(s := seen[p].value).reshape(*s.shape[:2], -1) for p in table[name]], -1)
        if all(apart(x, ours, len(table[name]) > 1) for x in calls[0]):  # a router gives more than one tensor
            out.append(name)
    return out


def apart(x: Tensor, ours: Tensor, fused: bool) -> bool:
    """Whether their output is not ours: heads may stand before tokens there, positions may have no batch."""
    x = x.transpose(1, 2) if x.ndim == 4 and x.shape[2] == ours.shape[1] else x
    x = x.expand_as(ours) if x.shape == ours.shape[1:] else x
    x = x.expand(len(ours), *x.shape[1:]) if len(x) == 1 and x.ndim == 3 else x
    if x.numel() != ours.numel():
        return True
    x = x.reshape(ours.shape)
    x, ours = (x.sort(-1)[0], ours.sort(-1)[0]) if fused else (x, ours)
    return far(x, ours) > 1e-9 * max(1.0, float(ours.abs().max()))


@pytest.mark.parametrize("family", judges.FAMILIES)
@pytest.mark.quick(10)
def test_every_name_has_its_tensor(family: str) -> None:
    """All families: each name leads to recorded tensors, the stream's names to the stream, transformers' to what its module gives."""
    model = load(judges.judge(family).folder)
    seen, table = recorded(model, family), aliases(model.module, model.family)
    assert {path for paths in table.values() for path in paths} <= set(seen.paths())
    assert not set(table) & set(seen.paths())
    for prefix, stack in naming.stacks(model.module):
        for i, block in enumerate(stack.layers):
            stream = seen[f"{prefix}layers.{i}.in"]
            assert stream.dims in ("B T D", "B S D") and f"{prefix}layers.{i}.out" in seen
            first = next(s for s in seen if s.path.startswith(f"{prefix}layers.{i}."))
            assert first.inputs[0] == stream.path
            if not prefix:
                assert seen[f"blocks.{i}.hook_resid_pre"] is stream
                assert seen[f"blocks.{i}.hook_resid_post"].path == f"layers.{i}.{block.leaves}"
                if hasattr(block, "attn"):
                    assert seen[f"blocks.{i}.attn.hook_pattern"].path == f"layers.{i}.attn.pattern"
    assert wrong(family) == []


def test_a_wrong_name_is_seen() -> None:
    """A mutant of the table, and one of the rule that a module holding what stands beside it in ours is no counterpart."""
    with swapped(naming, "GIVES", naming.GIVES | {".attn.o": ".attn.v"}):
        assert wrong("llama")
    with swapped(naming, "of_transformers", lambda m, f: [("bert.encoder.layer.0.attention", ("layers.0.attn",))]):
        assert wrong("bert") == ["bert.encoder.layer.0.attention"]


def test_common_names(specimen: Model) -> None:
    """The commonest names, in a GPT-2 and in a Llama."""
    gpt2, llama = aliases(specimen.module, specimen.family), aliases((m := load(judges.judge("llama").folder)).module, m.family)
    assert gpt2["layers.0.in"] == ("start",) and llama["layers.0.in"] == ("embed",) and llama["layers.1.in"] == ("layers.0.out",)
    assert gpt2["transformer.h.1.attn.c_attn"] == tuple(f"layers.1.attn.{n}" for n in "qkv")
    assert gpt2["transformer.h.1"] == ("layers.1.out",) and gpt2["transformer.h.1.mlp"] == ("layers.1.ffn",)
    assert llama["model.layers.1.self_attn.q_proj"] == ("layers.1.attn.q",) and llama["lm_head"] == ("logits",)
    assert llama["model.layers.1.self_attn"] == llama["blocks.1.hook_attn_out"] == ("layers.1.attn",)
    assert llama["blocks.1.mlp.hook_pre"] == ("layers.1.ffn.gate",) and gpt2["blocks.1.mlp.hook_pre"] == ("layers.1.ffn.up",)
    assert llama["blocks.1.mlp.hook_post"] == ("layers.1.ffn.neurons",) and "hook_pos_embed" not in llama
    assert gpt2["blocks.1.hook_resid_mid"] == ("layers.1.mid",) and gpt2["ln_final.hook_normalized"] == ("norm",)


def test_wherever_a_path_is_looked_up(specimen: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """only, edit, [...], in, a whole life, and --cell; under the record is our name."""
    ids = torch.tensor([specimen.tokenizer.encode(PROMPT)])
    with pellucid.watch(specimen, only=["blocks.*.attn.hook_pattern", "layers.*.in", "transformer.h.1.attn.c_attn"]) as seen:
        specimen(ids)
    assert set(seen.paths()) == {
        "start", *(f"layers.{i}.out" for i in range(3)), *(f"layers.{i}.attn.pattern" for i in range(4)),
        *(f"layers.1.attn.{n}" for n in "qkv"),
    }  # fmt: skip
    assert seen["blocks.2.attn.hook_pattern"] is seen["layers.2.attn.pattern"] and "layers.0.in" in seen
    assert [s.path for s in seen.all("transformer.h.1.attn.c_attn")] == [f"layers.1.attn.{n}" for n in "qkv"]
    outs = []
    for path in ("layers.1.in", "blocks.0.hook_resid_post", "layers.0.out"):
        with pellucid.watch(specimen, only="logits", edit={path: lambda x: x * 0.5}):
            outs.append(specimen(ids))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2]) and not torch.equal(outs[0], specimen(ids))
    recorded = pellucid.trace(specimen, PROMPT, terms=True)
    assert recorded["blocks.3.attn.hook_z"].path == "layers.3.attn.z"
    named = []
    for path in ("blocks.0.attn.hook_q", "transformer.h.0.ln_1", "layers.0.attn.q", "layers.0.attn_norm"):
        index = "0,0,1,3" if "q" in path else "0,1,3"
        assert main(["explain", "pellucid/capitals", PROMPT, "--cell", path, index, "--json"]) == 0
        named.append(json.loads(capsys.readouterr().out)["cell"])
    assert named[0] == named[2] and named[1] == named[3]


def test_patterns_of_our_own_paths_stay() -> None:
    """A pattern that could mean anything means our own paths alone."""
    known = {"layers.0.in": ("start",), "blocks.0.hook_mlp_out": ("layers.0.ffn",), "hook_pos_embed": ("positions",)}
    for own in ("*", "layers.*", "*.in", "*embed*", "layers.*.out", "layers.0.attn.?"):
        assert put([own], known) == [own]
    assert put(["layers.*.in", "blocks.?.hook_mlp_out", "q"], known) == ["start", "layers.0.ffn", "q"]


def test_an_unknown_name_offers_what_there_is() -> None:
    """GPT-2's name of the stream, on a Llama."""
    model = load(judges.judge("llama").folder)
    with pytest.raises(TraceError) as caught, pellucid.watch(model, edit={"start": lambda x: x}):
        model(*judges.prompts("llama"))
    assert "layers.3.out" not in str(caught.value) and "layers.0.in" in str(caught.value) and "embed" in str(caught.value)


def test_a_trace_from_a_folder(tmp_path: Path) -> None:
    """Without its model, what was made from what tells the stream; a part that does not tell it has no such names."""
    for name in ("capitals", "capitals-bert", "capitals-t5"):
        model = load(f"pellucid/{name}")
        recorded = pellucid.trace(model, PROMPT)
        recorded.save(tmp_path / name)
        again = pellucid.load_trace(tmp_path / name)
        table = aliases(model.module)
        assert {n: p for n, p in again.aliases.items() if n in table and ".in" in n} == {n: p for n, p in table.items() if ".in" in n}
        lens = {n: p for n, p in table.items() if n.startswith("blocks")}
        assert {n: again.aliases[n] for n in lens} == lens
    part = pellucid.trace(load("pellucid/capitals"), PROMPT, only="embed")
    part.save(tmp_path / "part")
    assert "layers.0.in" not in pellucid.load_trace(tmp_path / "part")


def test_weights_by_head(specimen: Model) -> None:
    """W_Q to W_O give each head's own numbers; transformers' names the tensor of the file."""
    recorded = pellucid.trace(specimen, PROMPT)
    x, z = recorded["blocks.1.ln1.hook_normalized"].value[0].double(), recorded["blocks.1.attn.hook_z"].value[0].double()
    w = {n: specimen.weight(f"blocks.1.attn.{n}").double() for n in ("W_Q", "b_Q", "W_O", "b_O")}
    q = torch.einsum("td,hdk->thk", x, w["W_Q"]) + w["b_Q"]
    assert far(q, recorded["blocks.1.attn.hook_q"].value[0]) < 1e-3
    assert far(torch.einsum("thk,hkd->td", z, w["W_O"]) + w["b_O"], recorded["blocks.1.hook_attn_out"].value[0]) < 1e-3
    fused = specimen.weight("transformer.h.1.attn.c_attn.weight")
    assert torch.equal(fused, specimen.tensors()["transformer.h.1.attn.c_attn.weight"])
    assert torch.equal(specimen.weight("layers.1.ffn.up.weight").T, specimen.weight("blocks.1.mlp.W_in"))
    assert specimen.weight("W_U").shape == specimen.weight("W_E").T.shape == (128, 4480)
    with pytest.raises(UseError, match=r"blocks\.1\.attn\.W_Q"):
        specimen.weight("blocks.1.attn.W_q")


@pytest.mark.parametrize("family", judges.FAMILIES)
@pytest.mark.quick(12)
def test_weights_by_every_file_name(family: str) -> None:
    model = load(judges.judge(family).folder)
    for name, tensor in model.tensors().items():
        assert torch.equal(model.weight(name), tensor), name
