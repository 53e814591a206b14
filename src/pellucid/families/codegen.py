"""CodeGen (arXiv 2203.13474): GPT-J, whose queries, values and keys lie in one matrix by the four cores that it was trained on."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gpt2, gptj
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, grouped

CORES = 4


def config(hf: Fields) -> c.Config:
    cfg = gptj.config(hf)
    heads = cfg.heads
    hf.relate(heads % CORES == 0, f"n_head % {CORES} == 0", n_head=heads)
    return replace(cfg, head_bias=True)


QKV = Rule(f"{gptj.LAYER}.attn.qkv_proj.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qvk"), grouped(CORES))
RULES = (*(rule for rule in gptj.RULES if "attn.q" not in rule.disk and "attn.k" not in rule.disk and "attn.v" not in rule.disk), QKV)
IGNORED = (*gptj.IGNORED, r"transformer\.h\.\d+\.attn\.causal_mask")

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, respell=gpt2.respell, architecture="CodeGenForCausalLM")
