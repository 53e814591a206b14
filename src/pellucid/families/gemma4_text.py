"""Gemma 4's text model (2026): Gemma 3 whose full layers have other heads, turn a part of them, and take their values from the keys.

Norms count from 0 again, values are normed too, and what leaves a block is times one stored number. 26B-A4B has experts beside the dense
part, with norms of their own. In E2B and E4B every block reads its tokens once more, and the last ones read the keys of others.
"""

from collections.abc import Container
from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma, gemma2, gemma3_text, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.gemma4_fields import TURNS, feed_forward, keys, kinds, layer_input, sizes, turn
from pellucid.families.names import FUSED, SPLIT, Rule, in_columns


def config(hf: Fields) -> c.Config:
    for name in ("rope_theta", "rope_scaling"):
        hf.fixed(name)  # one turn for both kinds of layers has no meaning
    if "rope_parameters" not in hf:
        hf.values = {**hf.values, "rope_parameters": TURNS}
    if hf.values.get("use_bidirectional_attention") == "vision":  # of images alone
        hf.read.add("use_bidirectional_attention")
    heads, window = hf.integer("num_attention_heads", 8), hf.length("sliding_window", 512)
    one, bias, layers = hf.flag("attention_k_eq_v", False), hf.flag("attention_bias", False), kinds(hf)
    attns = []
    for kind, (head, groups), own in zip(layers, sizes(hf, layers, one), keys(hf, layers), strict=True):
        hf.relate(heads % groups == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=groups)
        attn = c.Attention(heads, groups, head, turn(hf, kind, head), True, bias=bias, out_bias=bias, scale=1.0, v_rms=True, keys=own)
        full = kind == gemma2.FULL
        attns.append(replace(attn, v_from_k=one) if full else replace(attn, window=window))
    ffn, wide = feed_forward(hf), hf.flag("use_double_wide_mlp", False)
    order, reads = "sandwich, scaled, rows" if ffn.experts else "sandwich, scaled", layer_input(hf, ffn.act)
    hf.relate(reads is None or not ffn.experts, "enable_moe_block: false, or hidden_size_per_layer_input: 0")
    hf.relate(not wide or not ffn.experts, "enable_moe_block: false, or use_double_wide_mlp: false")
    wider = replace(ffn, width=2 * ffn.width) if wide else ffn  # where keys are shared
    ffns = (wider if attn.keys == "shared" else ffn for attn in attns)
    cfg = gemma.decoder(hf, tuple(c.Layer(attn, ffn, order=order, input=reads) for attn, ffn in zip(attns, ffns, strict=True)))
    return replace(cfg, norm="rms", logit_cap=hf.optional("final_logit_softcapping"))


LAYER, FFN = "model.layers.{i}", "layers.{i}.ffn"
EXPERT_NORMS = {
    "pre_feedforward_layernorm": "shared_norm",
    "post_feedforward_layernorm_1": "shared_post_norm",
    "pre_feedforward_layernorm_2": "routed_norm",
    "post_feedforward_layernorm_2": "routed_post_norm",
}
INPUTS = (
    Rule("model.per_layer_projection_norm.weight", "layers.0.input.norm.weight"),  # of all layers
    Rule(f"{LAYER}.per_layer_input_gate.*", "layers.{i}.input.gate.*"),
    Rule(f"{LAYER}.per_layer_projection.*", "layers.{i}.input.up.*"),
    Rule(f"{LAYER}.post_per_layer_input_norm.*", "layers.{i}.input_post_norm.*"),
)
DENSE = (*gemma3_text.RULES, *INPUTS, Rule(f"{LAYER}.layer_scalar", "layers.{i}.scalar"))
SPARSE = (
    *(r for r in DENSE if not r.disk.startswith((f"{LAYER}.mlp.", f"{LAYER}.pre_feedforward_layernorm"))),
    *(Rule(f"{LAYER}.mlp.{n}_proj.*", f"{FFN}.shared.{n}.*") for n in ("gate", "up", "down")),
    *(Rule(f"{LAYER}.{theirs}.*", f"{FFN}.{ours}.*") for theirs, ours in EXPERT_NORMS.items()),
    Rule(f"{LAYER}.router.proj.*", f"{FFN}.router.*"),
    Rule(f"{LAYER}.router.scale", f"{FFN}.router_norm.weight"),
    Rule(f"{LAYER}.router.per_expert_scale", f"{FFN}.expert_scale"),
    Rule(f"{LAYER}.experts.gate_up_proj", (f"{FFN}.gate", f"{FFN}.up"), FUSED),
    Rule(f"{LAYER}.experts.down_proj", f"{FFN}.down"),
)


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the table of names; with experts, what is the feed-forward part elsewhere is the part that every token visits."""
    if cfg.layers[0].ffn.experts:
        return SPARSE
    every = {n: tuple(f"layers.{i}.input.{n}.weight" for i in range(len(cfg.layers))) for n in ("table", "project")}
    return (
        *DENSE,
        Rule("model.embed_tokens_per_layer.weight", every["table"], in_columns(len(cfg.layers))),
        Rule("model.per_layer_model_projection.weight", every["project"], SPLIT),
    )


def ignored(cfg: c.Config, names: Container[str]) -> tuple[str, ...]:
    """Return names of what files hold of keys and values in layers that read those of others."""
    layers = "|".join(str(i) for i, one in enumerate(cfg.layers) if one.attn.keys == "shared")
    return (*llama.IGNORED, rf".*layers\.({layers})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*")


FAMILY = Family(config=config, rules=rules, ignored=ignored, architecture="Gemma4ForCausalLM")
