"""Published folders: the fields and values of their config.json, generation_config.json and tokenizer_config.json, and a tiny copy of each.

`published_folders.json` says where each was read: a copy in a public repository, or from memory. An entry that is `like` another has its
fields but those it is `without`, and its own. A tiny copy has every field, with other sizes: those of `SIZES`, and what follows from them.
"""

import json
from pathlib import Path
from typing import Any

Raw = dict[str, Any]

ROWS: dict[str, Raw] = {row["id"]: row for row in json.loads((Path(__file__).parent / "published_folders.json").read_text())}
VOCAB, HEADS, HEAD, LAYERS = 97, 4, 16, 3
SIZES: Raw = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size"), VOCAB),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 96),
    "intermediate_size_mlp": 96,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 8),
    **dict.fromkeys(("head_dim", "d_kv", "qk_nope_head_dim", "v_head_dim"), HEAD),
    "global_head_dim": 2 * HEAD,
    "num_global_key_value_heads": 1,
    "index_head_dim": 12,
    "index_n_heads": 24,  # fewer would score many keys 0, and which of equals is chosen is not said
    "index_topk": 6,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "first_k_dense_replace": 1,
    "attention_chunk_size": 8,
    "rotary_dim": 4,
    "attn_rotary_emb": HEAD // 2,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
}
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
REPEATED = {"num_heads": HEADS, **dict.fromkeys(("block_dim", "conv_dim", "conv_dim_out"), HEADS * HEAD)}  # LFM2 has some sizes twice
WIDTHS = ("hidden_size", "dim", "n_embd", "n_embed", "d_model")
WINDOWS = ("sliding_window", "sliding_window_size", "window_size")


def published(id: str, part: str = "config") -> Raw | None:
    """Return one file of a folder as it was published; None if the table lacks it."""
    row = ROWS[id]
    own = row.get(part)
    if part != "config" or "like" not in row:
        return own
    like = published(row["like"])
    assert own is not None and like is not None
    return {k: v for k, v in like.items() if k not in row.get("without", ())} | own


def tiny(hf: Raw) -> Raw:
    """Return the same config.json with small sizes. Shared keys, widths that follow from heads and layers that differ stay so."""
    if "text_config" in hf:
        return ids(hf) | {"text_config": tiny(hf["text_config"])}
    out = hf | {name: SIZES[name] for name in SIZES.keys() & hf.keys() if hf[name] not in (None, 0)}
    heads = next((hf[n] for n in ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads") if n in hf), 1)
    width = next((hf[n] for n in WIDTHS if n in hf), 1)
    own = hf.get("head_dim") is not None and hf["head_dim"] * heads != width  # a width of heads that follows from no other field
    out |= {n: HEADS * HEAD // (1 + own) for n in WIDTHS if n in hf}
    for name in ("num_key_value_heads", "num_kv_heads"):
        if name in hf:
            out[name] = HEADS if hf[name] == heads else 1 if hf[name] == 1 else 2
    if "ffn_hidden_size" in hf:
        out["ffn_hidden_size"] = hf["ffn_hidden_size"] * HEADS * HEAD // width
    if "word_embed_proj_dim" in hf:
        out["word_embed_proj_dim"] = HEADS * HEAD // (1 + (hf["word_embed_proj_dim"] != width))
    pattern = hf.get("sliding_window_pattern")
    depth = (len(pattern) if isinstance(pattern, str) else pattern or LAYERS - 1) + 1
    out |= {n: depth for n in DEPTHS if n in hf} | {n: size for n, size in REPEATED.items() if n in hf and "num_attention_heads" in hf}
    out |= {n: [1] for n in ("attn_layer_indices", "full_attn_idxs") if hf.get(n)}
    if "mamba_d_head" in hf and "mamba_d_ssm" not in hf:  # whose heads share out a multiple of the width
        out["mamba_d_head"] = hf["mamba_expand"] * HEADS * HEAD // SIZES["mamba_n_heads"]
    out |= {n: hf[n][:depth] for n in ("no_rope_layers", "attention_layers", "attn_type_list") if n in hf}
    out |= {n: [*hf[n][: depth - 1], hf[n][-1]] for n in ("layer_types",) if n in hf}  # the last layer's kind may be fixed
    out |= {"attention_types": [[out["attention_layers"], 1]]} if "attention_types" in hf else {}
    out |= {"max_window_layers": depth - (hf["max_window_layers"] != hf["num_hidden_layers"])} if "max_window_layers" in hf else {}
    out |= {n: 8 for n in WINDOWS if hf.get(n) is not None and hf[n] < hf.get("max_position_embeddings", 0)}
    if hf.get("num_kv_shared_layers"):  # of two layers of each kind the second one
        kinds = list(dict.fromkeys(hf["layer_types"])) * 2
        out |= {"layer_types": kinds, "num_hidden_layers": len(kinds), "num_kv_shared_layers": len(kinds) // 2}
        out |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
    if (hf.get("n_group") or 1) > 1:
        out |= {"n_group": 4, "topk_group": 2}
    out |= {n: hf[n][:depth] for n in ("is_moe_layer", "mlp_layer_types", "num_shared_expert") if isinstance(hf.get(n), list)}
    out |= {n: [96] * depth for n in ("moe_intermediate_size",) if isinstance(hf.get(n), list)}  # Hunyuan: as wide as the shared one
    out |= {n: [2] * depth for n in ("moe_topk",) if isinstance(hf.get(n), list)}
    chosen = {n: min(2, hf[n]) for n in ("num_experts_per_tok", "experts_per_token") if n in hf}
    scaling = hf.get("rope_scaling") or {}
    if "long_factor" in scaling:
        pairs = int(HEAD * hf.get("partial_rotary_factor", 1.0)) // 2
        out["rope_scaling"] = scaling | {n: scaling[n][-pairs:] for n in ("short_factor", "long_factor")}
    out.pop("quantization_config", None)  # the tiny weights are stored plain
    return ids(out | chosen)


def ids(values: Raw) -> Raw:
    """Return `values` with special token ids brought into the small vocabulary; -1, for none, stays."""

    def ids_in(value: Any) -> Any:
        if isinstance(value, list):
            return [ids_in(v) for v in value]
        return value % VOCAB if isinstance(value, int) and value >= 0 else value

    return {name: ids_in(v) if name.endswith("_token_id") or name == "bad_words_ids" else v for name, v in values.items()}
