"""Gemma 4's text model (2026): Gemma 3 whose full layers have other heads, turn a part of them, and take their values from the keys.

Norms count from 0 again, values are normed too, and what leaves a block is times one stored number. 26B-A4B has experts beside the dense
part, with norms of their own. Models with inputs of each layer or with layers that share keys (E2B, E4B) are refused by the field.
"""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma, gemma2, gemma3_text, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.gemma4_fields import TURNS, kinds, sizes, turn
from pellucid.families.names import FUSED, Rule

EXPERTS = {"num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"}
UNUSED = {"vocab_size_per_layer_input", "use_double_wide_mlp"}


def feed_forward(hf: Fields) -> c.Mlp | c.Moe:
    """Return the feed-forward part: dense, or experts beside a dense part that every token visits."""
    mlp = gemma2.mlp(hf)
    if not hf.flag("enable_moe_block", False):
        hf.read |= EXPERTS
        return mlp
    count, chosen = hf.integer("num_experts"), hf.integer("top_k_experts")
    hf.relate(chosen <= count, "top_k_experts <= num_experts", top_k_experts=chosen, num_experts=count)
    width, sizes = hf.integer("moe_intermediate_size"), {"act": mlp.act, "norms": True, "own_scale": True}
    hf.fixed("expert_intermediate_size", width)  # an older name, which transformers does not read
    return c.Moe(count, chosen, width, mlp.width, "softmax", corrected=False, least=0.0, **sizes)  # type: ignore[arg-type]


def config(hf: Fields, inputs: int = 256) -> c.Config:
    """Return the Config. inputs: the width of each layer's own input, of files that say none."""
    for name in ("rope_theta", "rope_scaling"):
        hf.fixed(name)  # one turn for both kinds of layers has no meaning
    if "rope_parameters" not in hf:
        hf.values = {**hf.values, "rope_parameters": TURNS}
    if hf.values.get("use_bidirectional_attention") == "vision":  # of images alone
        hf.read.add("use_bidirectional_attention")
    hf.fixed("num_kv_shared_layers", 0)
    if (own := hf.integer("hidden_size_per_layer_input", inputs, low=0)) != 0:
        raise hf.fault("hidden_size_per_layer_input", own, "0")
    hf.read |= UNUSED
    heads, window = hf.integer("num_attention_heads", 8), hf.length("sliding_window", 512)
    one, bias, layers = hf.flag("attention_k_eq_v", False), hf.flag("attention_bias", False), kinds(hf)
    attns = []
    for kind, (head, groups) in zip(layers, sizes(hf, layers, one), strict=True):
        hf.relate(heads % groups == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=groups)
        attn = c.Attention(heads, groups, head, turn(hf, kind, head), True, bias=bias, out_bias=bias, scale=1.0, v_rms=True)
        full = kind == gemma2.FULL
        attns.append(replace(attn, v_from_k=one) if full else replace(attn, window=window))
    ffn = feed_forward(hf)
    order = "sandwich, scaled, rows" if ffn.experts else "sandwich, scaled"
    cfg = gemma.decoder(hf, tuple(c.Layer(attn, ffn, order=order) for attn in attns))
    return replace(cfg, norm="rms", logit_cap=hf.optional("final_logit_softcapping"))


LAYER, FFN = "model.layers.{i}", "layers.{i}.ffn"
EXPERT_NORMS = {
    "pre_feedforward_layernorm": "shared_norm",
    "post_feedforward_layernorm_1": "shared_post_norm",
    "pre_feedforward_layernorm_2": "routed_norm",
    "post_feedforward_layernorm_2": "routed_post_norm",
}
DENSE = (*gemma3_text.RULES, Rule(f"{LAYER}.layer_scalar", "layers.{i}.scalar"))
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
    return SPARSE if cfg.layers[0].ffn.experts else DENSE


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, architecture="Gemma4ForCausalLM")
