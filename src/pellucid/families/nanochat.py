"""nanochat (2025): norms without weights, also of the embedding and behind rope, pairs that turn backwards, and a network that squares."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    attn = llama.attention(hf)
    assert attn.rope is not None
    if attn.rope.by_length:
        raise hf.fault("rope_parameters", attn.rope.scaling_name, "default, linear, llama3, yarn")
    attn = replace(attn, rope=replace(attn.rope, backwards=True), qk_rms=True)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "relu2"), gated=False)
    cfg = llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000))
    return replace(cfg, norm="rms, no weight", embed_norm=True, logit_cap=hf.optional("final_logit_softcapping", 15.0))


RULES = (
    *llama.ENDS[::2],
    *llama.ATTENTION,
    Rule("model.layers.{i}.mlp.fc1.*", "layers.{i}.ffn.up.*"),
    Rule("model.layers.{i}.mlp.fc2.*", "layers.{i}.ffn.down.*"),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="NanoChatForCausalLM")
