"""Command R7B and Command A (arXiv 2504.00698): Command R with windows, and full layers that do not turn."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import cohere, gemma2, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields

# What Cohere's own files say of the block beside transformers' fields.
TOLD_AGAIN = {
    *("layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "use_embedding_sharing"),
    *("use_gated_activation", "use_parallel_block", "use_parallel_embedding"),
}


def config(hf: Fields) -> c.Config:
    attn, width, window = llama.attention(hf, interleaved=True), hf.integer("hidden_size"), hf.length("sliding_window", 4096)
    hf.relate(attn.heads * attn.width == width, "head_dim == hidden_size / num_attention_heads", head_dim=attn.width)
    hf.read |= TOLD_AGAIN
    by_kind = {gemma2.FULL: replace(attn, rope=None), gemma2.SLIDING: replace(attn, window=window)}
    kinds = gemma2.kinds(hf, hf.integer("sliding_window_pattern", 4))
    return cohere.decoder(hf, tuple(by_kind[kind] for kind in kinds))


FAMILY = Family(config=config, rules=cohere.RULES, ignored=llama.IGNORED, architecture="Cohere2ForCausalLM")
