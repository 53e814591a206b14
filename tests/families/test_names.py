"""Every family's table of weight names is reversible, published spellings are known, and an error is one line."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from covering import EACH
from judge import FAMILIES, judge, ours, prompts
from pellucid.checkpoint.fill import fill, unfill
from pellucid.errors import CheckpointError
from pellucid.families import understand
from pellucid.nn.transformer import Decoder, EncoderDecoder, build
from test_families import old


class LoadedModel:
    """Tensors in memory, as a source for `fill`."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> Iterable[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.tensors[name].dtype

    def read(self, name: str, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        return self.tensors[name] if into is None else into.copy_(self.tensors[name])


def disk(family: str, quirk: str = "plain") -> dict[str, Tensor]:
    return load_file(judge(family, quirk).folder / "model.safetensors")


def filled(family: str, tensors: dict[str, Tensor], quirk: str = "plain", **config: Any) -> Decoder | EncoderDecoder:
    """Return a model filled with these tensors."""
    kind, cfg = understand(judge(family, quirk).config | config)
    with torch.device("meta"):
        model = build(cfg)
    fill(model, kind, LoadedModel(tensors), "weights")
    return model.eval()


@pytest.mark.parametrize(("family", "quirk"), EACH)
@pytest.mark.quick(5)
def test_the_table_of_names_is_reversible(family: str, quirk: str) -> None:
    """Written names and bits are those of transformers, but for what carries nothing (PEGASUS' sinusoids)."""
    kind, model = ours(judge(family, quirk).folder)
    wrote, stored = dict(unfill(model, kind.rules_for(model.config))), disk(family, quirk)
    assert wrote.keys() == {n for n, t in stored.items() if t.numel()} - kind.unused(model.config, stored)
    assert all(torch.equal(wrote[n], stored[n]) for n in wrote)
    assert all(t.is_contiguous() for t in wrote.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(11)
def test_faults_of_a_checkpoint_are_one_line(family: str) -> None:
    good, (kind, cfg) = disk(family), understand(judge(family).config)
    filled(family, good)
    name = sorted(n for n in good if ".1." in n or family == "albert")[-1]  # whose blocks have one block's weights
    named = {n.replace("*", "weight"): r.disk.replace("*", "weight") for r in kind.rules_for(cfg) for n in r.names}
    head, embed = named["head.weight"], named["embed.weight"]
    faults: list[tuple[str, dict[str, Tensor], list[str]]] = [
        ("weights.missing", {n: t for n, t in good.items() if n != name}, [name, "1 tensor "]),
        ("weights.extra", {**good, "another.thing": torch.ones(2)}, ["another.thing"]),
        ("weights.shape", {**good, name: torch.cat([good[name]] * 2)}, [name, str(tuple(good[name].shape))]),
        ("weights.dtype", {**good, name: good[name].to(torch.float8_e4m3fn)}, [name, "float8_e4m3fn"]),
        ("weights.dtype", {**good, name: good[name].long()}, [name, "int64"]),
        ("weights.missing", {}, [f"{len(good.keys() - kind.unused(cfg, good))} tensors", "weights"]),
    ]
    if cfg.tied:
        filled(family, {**good, head: good[embed].clone()})
        faults.append(("weights.tied", {**good, head: good[embed] + 1}, [head, embed]))
    for key, tensors, words in faults:
        with pytest.raises(CheckpointError) as refused:
            filled(family, tensors)
        assert refused.value.key == key
        assert all(w in str(refused.value) for w in words) and "\n" not in str(refused.value), str(refused.value)


def test_hub_spellings_of_weights() -> None:
    """Published files load with a missing prefix, masks, frequency tables, repeated tables and a second-token module."""
    masks = {f"h.{i}.attn.{n}": torch.ones(1, 1, 64, 64) for i in (0, 1) for n in ("bias", "masked_bias")}
    bare = {n.removeprefix("transformer."): t for n, t in disk("gpt2").items()}
    twice = {f"{side}.embed_tokens.weight": disk("t5")["shared.weight"] for side in ("encoder", "decoder")}
    stray = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(8, 4)}
    turns = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in (0, 1)}
    second = {n.replace("layers.2", "layers.3"): t for n, t in disk("deepseek_v3").items() if "layers.2" in n}
    second |= {f"model.layers.3.{n}.weight": torch.ones(2, 2) for n in ("eh_proj", "enorm", "hnorm", "shared_head.head")}
    for family, more in (("gpt2", bare | masks), ("t5", disk("t5") | twice | stray), ("llama", disk("llama") | turns)):
        model = filled(family, more)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), filled(family, disk(family)).parameters(), strict=True))
    filled("deepseek_v3", disk("deepseek_v3") | second)
    with pytest.raises(CheckpointError, match=r"layers\.3"):  # without eh_proj it is a layer that config.json denies
        filled("deepseek_v3", {n: t for n, t in (disk("deepseek_v3") | second).items() if "eh_proj" not in n})
    with pytest.raises(CheckpointError, match=r"encoder.embed_tokens.weight"):
        filled("t5", disk("t5") | {"encoder.embed_tokens.weight": disk("t5")["shared.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"wte.weight"):  # both spellings at once
        filled("gpt2", disk("gpt2") | {"wte.weight": bare["wte.weight"]})


def test_a_tied_head_is_one_table() -> None:
    for family, quirk in (("gpt2", "plain"), ("t5", "plain"), ("llama", "tied, one kv head"), ("qwen3", "biases, tied")):
        model = ours(judge(family, quirk).folder)[1]
        assert model.head.weight is model.embed.weight
    model = ours(judge("t5", "v1.1, own head").folder)[1]
    assert model.head.weight is not model.embed.weight


def test_t5_in_the_spelling_of_the_hub() -> None:
    """v1.1 on the hub says `tie_word_embeddings: false` and stores its head."""
    j, ids = judge("t5", "v1.1, own head"), prompts("t5")
    with torch.no_grad():
        error = (ours(j.folder, config=old(j.config))[1](*ids) - j.logits(*ids)).abs().max().item()
    assert error < 1e-9


@pytest.mark.parametrize(
    ("family", "left", "right"),
    [
        *((f, "gate", "up") for f in ("llama", "gpt_oss", "phi3", "glm")),
        *((f, "q", "k") for f in ("gpt2", "t5")),
        ("phi3", "k", "v"),
        ("gemma2", "attn_post_norm", "ffn_norm"),  # as Llama would read their names
        ("glm4", "attn_post_norm", "ffn_post_norm"),
    ],
)
def test_a_wrong_line_in_a_table_is_seen(family: str, left: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two exchanged names of equal shapes fill the model without an error, and the logits differ."""
    j, ids = judge(family), prompts(family)
    kind, cfg = understand(j.config)

    def exchanged(name: str) -> str:
        for a, b in ((f".{left}", f".{right}"), (f".{right}", f".{left}")):
            for end in ("", ".*", "_bias"):
                if name.endswith(f"{a}{end}") and "router" not in name:
                    return name.removesuffix(f"{a}{end}") + f"{b}{end}"
        return name

    rules = tuple(replace(r, ours=tuple(map(exchanged, r.names))) for r in kind.rules_for(cfg))
    with torch.device("meta"):
        model = build(cfg)
    fill(model, replace(kind, rules=lambda _: rules), LoadedModel(disk(family)), "weights")
    with torch.no_grad():
        error = (model.eval()(*ids) - j.logits(*ids)).abs().max().item()
    assert error > 1e-3
