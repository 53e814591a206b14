"""Hunyuan A13B (Tencent, 2025): Hunyuan's attention, and experts chosen by a softmax beside one that every token visits."""

from typing import Any

from pellucid import config as c
from pellucid.families import hunyuan_v1_dense, llama, moe_fields, qwen2_moe
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

# of training, of pictures, and of what `SAID` rules out
SILENT = {"capacity_factor", "moe_drop_tokens", "moe_random_routing_dropped_token", "num_media_embeds", "skip_cls_token"}
SILENT |= {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_group", "topk_group"}
SAID = {
    "use_mla": False,
    "use_mixed_mlp_moe": True,
    "group_limited_greedy": False,
    "moe_layer_num_skipped": 0,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "position_embedding_xdrope": False,
}


def same(hf: Fields, name: str, layers: int, *default: Any) -> int:
    """Return an integer that a file gives once, or once for each layer; layers must be alike."""
    value = hf.get(name, *default)
    if not isinstance(value, list):
        return hf.integer(name, *default)
    if len(value) != layers or any(type(v) is not int or v != value[0] or v < 1 for v in value):
        raise hf.fault(name, value, f"int, {layers} × int")
    return int(value[0])


def config(hf: Fields) -> c.Config:
    layers = hf.integer("num_hidden_layers", high=100_000)
    hf.read |= SILENT
    for name, value in SAID.items():
        hf.fixed(name, value)
    width = hf.integer("intermediate_size")
    for name, each in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        hf.fixed(name, each, [each] * layers)
    count, chosen = moe_fields.experts(hf), same(hf, "moe_topk", layers, 1)
    hf.fixed("num_experts_per_tok", chosen)
    hf.relate(chosen <= count, "moe_topk <= num_experts", moe_topk=chosen, num_experts=count)
    act = hf.choice("hidden_act", ACTS, "silu")
    moe = c.Moe(count, chosen, width, shared=width, affinity="softmax", corrected=False, act=act)
    return llama.decoder(hf, (c.Layer(hunyuan_v1_dense.attention(hf), moe),) * layers, eps=1e-5)


MLP = "model.layers.{i}.mlp"
RULES = (
    *llama.ENDS,
    *llama.NORMS,
    *llama.ATTENTION,
    *hunyuan_v1_dense.QK_NORMS,
    Rule(f"{MLP}.gate.wg.weight", "layers.{i}.ffn.router.weight"),
    *qwen2_moe.EXPERTS[1:],
    *(Rule(f"{MLP}.shared_mlp.{n}_proj.*", f"layers.{{i}}.ffn.shared.{n}.*") for n in ("gate", "up", "down")),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="HunYuanMoEV1ForCausalLM")
