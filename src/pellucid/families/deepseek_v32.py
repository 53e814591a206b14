"""DeepSeek-V3.2 (arXiv 2512.02556): DeepSeek-V3 with sparse attention: an indexer chooses the keys of each query."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

DENSE, SPARSE = KINDS = ("dense", "sparse")


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind, dense or sparse: by `mlp_layer_types`, or sparse from `first_k_dense_replace` on."""
    layers, dense = hf.integer("num_hidden_layers", high=100_000), hf.integer("first_k_dense_replace", 3, low=0)
    if hf.get("layer_types", None) is not None:
        hf.texts("layer_types", layers, ("indexed_attention",))
    if hf.get("mlp_layer_types", None) is not None:
        return hf.texts("mlp_layer_types", layers, KINDS)
    return [DENSE if i < dense else SPARSE for i in range(layers)]


def latent(hf: Fields, heads: int = 64) -> c.Latent:
    """Return MLA with its indexer. heads: the indexer's, where the file does not say."""
    hf.fixed("rope_interleave", True)
    attn, chosen = deepseek_v3.latent(hf), hf.integer("index_topk", 2048)
    hf.relate(attn.q_rank is not None, "q_lora_rank > 0", q_lora_rank=attn.q_rank)
    index = c.Index(hf.integer("index_n_heads", heads), hf.integer("index_head_dim", 128), chosen)
    hf.relate(index.width >= attn.rope.width, "index_head_dim >= qk_rope_head_dim", index_head_dim=index.width, turned=attn.rope.width)
    return replace(attn, index=index)


def layers(hf: Fields, attn: c.Latent, moe: c.Moe) -> tuple[c.Layer, ...]:
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return tuple(c.Layer(attn, mlp if kind == DENSE else moe) for kind in kinds(hf))


def config(hf: Fields) -> c.Config:
    return llama.decoder(hf, layers(hf, latent(hf), deepseek_v3.moe(hf)))


INDEXER = {"wq_b": "q", "wk": "k", "k_norm": "k_norm", "weights_proj": "weights"}
RULES = (
    *deepseek_v3.RULES,
    *(Rule(f"model.layers.{{i}}.self_attn.indexer.{theirs}.*", f"layers.{{i}}.attn.indexer.{ours}.*") for theirs, ours in INDEXER.items()),
)

FAMILY = Family(config=config, rules=RULES, ignored=deepseek_v3.ignored, architecture="DeepseekV32ForCausalLM")
