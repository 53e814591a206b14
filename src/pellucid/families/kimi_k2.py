"""Kimi K2 (arXiv 2507.20534): DeepSeek-V3 under another model_type, with half the heads and half as many experts more."""

from pellucid.families import deepseek_v3
from pellucid.families.family import Family

FAMILY = Family(
    config=deepseek_v3.config,
    rules=deepseek_v3.RULES,
    ignored=deepseek_v3.ignored,
    architecture="DeepseekV3ForCausalLM",
)
