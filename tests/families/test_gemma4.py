"""The text models of a multimodal Gemma 4 are read and saved as text models; what is not served is refused by its field."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import pellucid
from judge import KINDS, judge, make, ours, promoted, prompts
from pellucid import config as c
from pellucid import ops
from pellucid.api.model import load
from pellucid.batch.kv_cache import KVCache
from pellucid.batch.mask import causal
from pellucid.batch.step import Step
from pellucid.counting.ranks import check, split_of
from pellucid.errors import ConfigError, UseError
from pellucid.families import understand
from pellucid.nn import attention, block, layer_input, moe
from pellucid.nn.transformer import build
from pellucid.ops import native
from pellucid.training.recompute import Recompute
from tiny import far, law

Raw = dict[str, Any]
ROTATE = importlib.import_module("pellucid.ops.rotate")  # the package names functions like their modules
EYES: dict[str, Raw] = {
    "gemma4": {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 8,
    },
    "gemma4_unified": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 32, "mm_posemb_size": 8, "output_proj_dims": 32},
}  # fmt: skip
CLASSES = {"gemma4": "Gemma4ForCausalLM", "gemma4_unified": "Gemma4UnifiedForCausalLM"}
TURNS = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
# gemma-4-31B-it's config.json
GEMMA_4_31B: Raw = {
    "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None, "audio_token_id": 258881, "boa_token_id": 256000,
    "boi_token_id": 255999, "dtype": "bfloat16", "eoa_token_id": 258883, "eoa_token_index": 258883, "eoi_token_id": 258882,
    "eos_token_id": [1, 106], "image_token_id": 258880, "initializer_range": 0.02, "model_type": "gemma4", "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2, "dtype": "bfloat16",
        "enable_moe_block": False, "eos_token_id": 1, "expert_intermediate_size": None, "final_logit_softcapping": 30.0,
        "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376,
        "hidden_size_per_layer_input": 0, "initializer_range": 0.02, "intermediate_size": 21504,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "max_position_embeddings": 262144,
        "model_type": "gemma4_text", "num_attention_heads": 32, "num_experts": None, "num_global_key_value_heads": 4,
        "num_hidden_layers": 60, "num_key_value_heads": 16, "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_parameters": TURNS, "sliding_window": 1024, "tie_word_embeddings": True, "top_k_experts": None,
        "use_bidirectional_attention": "vision", "use_cache": True, "use_double_wide_mlp": False, "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
    },
    "tie_word_embeddings": True, "transformers_version": "5.5.0.dev0", "video_token_id": 258884,
    "vision_config": {"model_type": "gemma4_vision"}, "vision_soft_tokens_per_image": 280,
}  # fmt: skip

# gemma-4-26B-A4B-it's text_config, where it differs
GEMMA_4_26B: Raw = GEMMA_4_31B | {
    "text_config": GEMMA_4_31B["text_config"] | {
        "enable_moe_block": True, "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 128,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "num_attention_heads": 16, "num_hidden_layers": 30,
        "num_global_key_value_heads": 2, "num_key_value_heads": 8, "top_k_experts": 8,
    },
}  # fmt: skip


# gemma-4-E2B-it's and E4B-it's text_config, where they differ
SMALL: Raw = {
    "attention_k_eq_v": False, "hidden_size_per_layer_input": 256, "max_position_embeddings": 131072, "num_attention_heads": 8,
    "num_global_key_value_heads": None, "sliding_window": 512, "vocab_size_per_layer_input": 262144,
}  # fmt: skip
GEMMA_4_E2B: Raw = GEMMA_4_31B | {
    "text_config": GEMMA_4_31B["text_config"] | SMALL | {
        "hidden_size": 1536, "intermediate_size": 6144, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
    },
}  # fmt: skip
GEMMA_4_E4B: Raw = GEMMA_4_31B | {
    "text_config": GEMMA_4_31B["text_config"] | SMALL | {
        "hidden_size": 2560, "intermediate_size": 10240, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
        "num_hidden_layers": 42, "num_key_value_heads": 2, "num_kv_shared_layers": 18,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=EYES)
def multimodal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Tensor]:
    """Return a model_type, a folder of transformers and its logits of a prompt in float64."""
    kind: str = request.param
    text = KINDS[f"{kind}_text"].tiny | {"model_type": f"{kind}_text", "final_logit_softcapping": 3.0, "attention_k_eq_v": True}
    cfg = AutoConfig.for_model(kind, text_config=text, vision_config=EYES[kind], eos_token_id=[2, 5])
    cfg._attn_implementation = "eager"
    torch.manual_seed(0)
    with promoted(), torch.no_grad():
        hf = AutoModelForImageTextToText.from_config(cfg).double().eval()
        table = hf.model.language_model.embed_tokens
        table.embed_scale.fill_(table.scalar_embed_scale)
        scalars = [b for n, b in hf.named_buffers() if n.endswith("layer_scalar")]
        for p in (*hf.parameters(), *scalars):
            p += 0.15 * torch.randn_like(p)
        rows = hf.model.language_model(input_ids=prompts("gemma4_text")[0], use_cache=False).last_hidden_state
        logits = 3.0 * torch.tanh(hf.lm_head(rows) / 3.0)
    folder = tmp_path_factory.mktemp("multimodal")
    hf.save_pretrained(folder)
    return kind, folder, logits


def test_the_text_model_is_read_and_saved_alone(multimodal: tuple[str, Path, Tensor], tmp_path: Path) -> None:
    """transformers reads what is saved as its text model, and finds every weight."""
    kind, folder, logits = multimodal
    model = load(folder)
    with torch.no_grad():
        assert far(model(*prompts("gemma4_text")), logits) < 1e-9
    assert model.stops == (2, 5) and model.config.tied
    assert model.left and all(n.startswith(("model.vision_", "model.embed_vision.")) for n in model.left)
    model.save(tmp_path / "text")
    written = json.loads((tmp_path / "text" / "config.json").read_text())
    assert written["model_type"] == f"{kind}_text" and written["eos_token_id"] == [2, 5] and not any("vision" in name for name in written)
    again = load(tmp_path / "text")
    assert again.config == model.config and not again.left
    hf, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float64, output_loading_info=True)
    assert type(hf).__name__ == CLASSES[kind] and not any(info.values())
    with torch.no_grad():
        assert far(hf(*prompts("gemma4_text")).logits, logits) < 1e-4  # with its islands of float32


def test_a_published_file(tmp_path: Path) -> None:
    """Every sixth layer is full: its heads are twice as wide, of which a quarter turns, and its values are its keys."""
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_4_31B))
    counted = pellucid.count(tmp_path, context=8192).numbers
    assert counted["parameters.total"].value == 30_697_345_280
    assert counted["cache.bytes"].value == 50 * 1024 * 16_384 + 10 * 8192 * 8192
    cfg = understand(GEMMA_4_31B)[1]
    with torch.device("meta"):
        model = build(cfg)
    assert sum(p.numel() for p in model.parameters()) == 30_697_345_280
    full = AutoConfig.for_model(**GEMMA_4_31B).to_dict()
    assert understand(full)[1] == cfg and cfg.stops == (1, 106) and cfg.context == 262_144
    near, far_layer = (layer.attn for layer in cfg.layers[4:6])
    assert isinstance(near, c.Attention) and isinstance(far_layer, c.Attention)
    assert (near.width, near.kv_heads, near.window, near.v_from_k) == (256, 16, 1024, False)
    assert (far_layer.width, far_layer.kv_heads, far_layer.window, far_layer.v_from_k) == (512, 4, None, True)
    assert far_layer.rope == c.Rope(512, 1e6, scaling=c.Proportional(64))


def test_experts_beside_a_dense_part(tmp_path: Path) -> None:
    """26B-A4B has as many parameters as transformers counts; of a layer's 128 experts a token visits 8, and always the dense part."""
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_4_26B))
    counted = pellucid.count(tmp_path, context=8192).numbers
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(**GEMMA_4_26B["text_config"]))
    assert counted["parameters.total"].value == sum(p.numel() for p in hf.parameters()) == 25_233_141_760
    assert counted["parameters.total"].value - counted["parameters.active"].value == 30 * 120 * 3 * 2816 * 704
    assert counted["cache.bytes"].value == 25 * 1024 * 8192 + 5 * 8192 * 4096
    layer = understand(GEMMA_4_26B)[1].layers[0]
    assert layer.order == "sandwich, scaled, rows"
    assert layer.ffn == c.Moe(
        128, 8, 704, 2112, "softmax", corrected=False, least=0.0, act="gelu_tanh", norms=True, own_scale=True
    )  # fmt: skip


def normed(x: Tensor, norm: Any) -> Tensor:
    """Return x over its root mean square, times the norm's weight."""
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


@law(
    1e-12,
    one_norm=(moe.Moe, "router_rows", lambda self, x: x),
    no_norms=(moe.Moe, "normed", lambda self, norm, x: x),
    no_factor=(ops, "scaled_shares", lambda share, chosen, factors: share),
)
def test_experts_and_the_dense_part_have_norms_of_their_own() -> float:
    """The mixture equals its formula: every expert's output, times a share that is 0 where it is not chosen."""
    draw = torch.Generator().manual_seed(0)
    part = moe.Moe(c.Config(9, 8, ()), c.Moe(4, 2, 6, 5, "softmax", corrected=False, least=0.0, norms=True, own_scale=True)).double()
    for p in part.parameters():
        p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64)
    x = torch.randn(2, 3, 8, generator=draw, dtype=torch.float64)
    shares = ((normed(x, part.router_norm) / 8**0.5) @ part.router.weight.T).softmax(-1)
    shares = shares * (shares >= shares.topk(2, -1)[0][..., -1:])
    shares = shares / shares.sum(-1, keepdim=True) * part.expert_scale
    rows = normed(x, part.routed_norm)
    made = [(torch.nn.functional.silu(rows @ g.T) * (rows @ u.T)) @ d.T for g, u, d in zip(part.gate, part.up, part.down, strict=True)]
    routed = sum(share[..., None] * y for share, y in zip(shares.unbind(-1), made, strict=True))
    dense = part.shared(normed(x, part.shared_norm))
    with torch.no_grad():
        return far(part(x), normed(routed, part.routed_post_norm) + normed(dense, part.shared_post_norm))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_an_experts_factor_has_torchs_bits(stored: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    share, chosen = torch.rand(2, 3, 4, generator=draw), torch.randint(9, (2, 3, 4), generator=draw)
    factors = torch.randn(9, generator=draw).to(stored)
    with native.off():
        plain = ops.scaled_shares(share, chosen, factors)
    assert torch.equal(ops.scaled_shares(share, chosen, factors), plain) and torch.equal(plain, share * factors.float()[chosen])


TEXT = GEMMA_4_31B["text_config"]
REFUSED: list[tuple[Raw, str]] = [
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"text_config": TEXT | {"model_type": "gemma3_text"}}, "text_config.model_type"),
    ({"text_config": TEXT | {"hidden_size_per_layer_input": -1}}, "text_config.hidden_size_per_layer_input"),
    (
        {"text_config": TEXT | {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 8}},
        "vocab_size_per_layer_input >= vocab_size",
    ),
    ({"text_config": TEXT | {"num_kv_shared_layers": 56}}, "num_kv_shared_layers"),
    ({"text_config": TEXT | {"use_double_wide_mlp": 1}}, "text_config.use_double_wide_mlp"),
    ({"text_config": TEXT | {"enable_moe_block": True}}, "text_config.num_experts"),
    ({"text_config": TEXT | {"per_layer_config": {"60": {"head_dim": 512}}}}, "text_config.per_layer_config.60"),
    ({"text_config": TEXT | {"per_layer_config": {"05": {"heads": 512}}}}, "text_config.per_layer_config.05.heads"),
    ({"text_config": TEXT | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}}, "text_config.rope_scaling"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED)
def test_faults_are_named_where_they_stand(change: Raw, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        understand(GEMMA_4_31B | change)
    assert named in str(refused.value) and "\n" not in str(refused.value)


@law(1e-12, all_pairs=(ROTATE.torch, "where", lambda turning, plain, rest: plain))
def test_a_part_of_the_pairs_turns_as_fast_as_among_all() -> float:
    rope = c.Rope(16, 100.0, scaling=c.Proportional(2, 3.0))
    return far(ROTATE.frequencies(rope, torch.float64), torch.tensor([1 / 3, 100 ** (-2 / 16) / 3, *[0.0] * 6], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_a_stored_number_has_torchs_bits(dtype: torch.dtype, stored: torch.dtype) -> None:
    x, factor = torch.randn(2, 3, 37, generator=torch.Generator().manual_seed(0)).to(dtype), torch.tensor([0.3007], dtype=stored)
    with native.off():
        plain = ops.multiplied(x, factor)
    assert torch.equal(ops.multiplied(x, factor), plain) and torch.equal(plain, x * factor.to(dtype))


@pytest.mark.parametrize(
    ("config", "total", "tables"), [(GEMMA_4_E2B, 4_628_569_344, 35), (GEMMA_4_E4B, 7_463_013_376, 42)], ids=["E2B", "E4B"]
)
def test_inputs_of_each_layer_and_shared_keys(config: Raw, total: int, tables: int, tmp_path: Path) -> None:
    """E2B and E4B have as many parameters as transformers counts, and store keys and values in their first layers alone."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    bill = pellucid.count(tmp_path, context=8192)
    counted = bill.numbers
    with pytest.raises(UseError, match="pp is 2, and layer 0 reads"):
        check(bill, split_of("pp=2"))
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config["text_config"]))
    assert counted["parameters.total"].value == sum(p.numel() for p in hf.parameters()) == total
    assert counted["parameters.by_part.table"].value == tables * 262_144 * 256
    layers = understand(config)[1].layers
    attns = [layer.attn for layer in layers if isinstance(layer.attn, c.Attention)]
    own = [attn for attn in attns if attn.keys != "shared"]
    assert len(own) == len(layers) - config["text_config"]["num_kv_shared_layers"] and [a.keys for a in own].count("kept") == 2
    near, full = (sum(attn.window == limit for attn in own) for limit in (512, None))
    groups = config["text_config"]["num_key_value_heads"]
    assert counted["cache.bytes"].value == groups * (near * 512 * 2 * 256 * 2 + full * 8192 * 2 * 512 * 2)
    assert {layer.ffn.width for layer in layers[len(own) :]} == {2 * 6144 if tables == 35 else 10_240}


def entered_late(self: block.InputBlock, part: str, x: Tensor, step: Step) -> Tensor:
    """Run a part of a block whose rows stand for those that entered the first block: a mutant."""
    step.entered = x
    return block.Block.run(self, part, x, step)


def negated(self: attention.KeptKeysAttention, step: Step, k: Tensor, v: Tensor) -> KVCache:
    """Keep other values for later layers: a mutant."""
    step.once["keys", self.window] = step.store(self, k, -v)
    return step.store(self, k, v)


def detached(self: attention.KeptKeysAttention, step: Step, k: Tensor, v: Tensor) -> KVCache:
    """Keep keys and values for later layers without their gradients: a mutant."""
    step.once["keys", self.window] = step.store(self, k.detach(), v.detach())
    return step.store(self, k, v)


@law(
    1e-9,
    other_values=(attention.KeptKeysAttention, "keep", negated),
    another_window=(attention.SharedKeysAttention, "mask", lambda self, step: causal),
    no_table=(layer_input.LayerInput, "own", lambda self, step: self.norm(self.project(step.entered))),
    rows_of_the_block=(block.InputBlock, "run", entered_late),
)
def test_a_block_reads_its_tokens_and_keys_of_another() -> float:
    """A layer without keys reads those of the last one of its window that kept its own, and every block the rows that entered the first."""
    j = judge("gemma4_text", "as E2B")
    own, ids = ours(j.folder)[1], prompts("gemma4_text")
    with torch.no_grad():
        return far(own(*ids), j.logits(*ids))


@law(1e-10, keys_apart=(attention.KeptKeysAttention, "keep", detached))
def test_keys_of_another_layer_have_gradients_of_both() -> float:
    """Gradients are those of transformers, with the blocks run again in the backward pass too."""
    j = make("gemma4_text", "as E2B")
    ids = prompts("gemma4_text")
    with promoted():
        j.hf(*ids, use_cache=False).logits.square().mean().backward()
    theirs = {n.removeprefix("model."): p.grad for n, p in j.hf.named_parameters()}
    gaps = []
    for again in (False, True):
        model = ours(j.folder)[1].requires_grad_()
        Recompute(model, again)
        model(*ids).square().mean().backward()
        names = {
            "self_attn.k_proj.weight": "attn.k.weight",
            "self_attn.v_proj.weight": "attn.v.weight",
            "per_layer_input_gate.weight": "input.gate.weight",
        }
        for disk, name in names.items():
            gaps += [far(model.get_parameter(f"layers.{i}.{name}").grad, theirs[f"layers.{i}.{disk}"]) for i in range(3)]
        tables = torch.cat([model.get_parameter(f"layers.{i}.input.table.weight").grad for i in range(6)], 1)
        gaps += [far(tables, theirs["embed_tokens_per_layer.weight"]), far(model.embed.weight.grad, theirs["embed_tokens.weight"])]
    return max(gaps)
