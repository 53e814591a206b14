"""GPT-SW3 (arXiv 2305.12987), of the Nordic languages: GPT-2 by another name."""

from pellucid.families import gpt2
from pellucid.families.family import Family

FAMILY = Family(config=gpt2.config, rules=gpt2.RULES, ignored=gpt2.IGNORED, respell=gpt2.respell, architecture="GPT2LMHeadModel")
