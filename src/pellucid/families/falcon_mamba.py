"""Falcon Mamba (arXiv 2410.05355): Mamba, whose dt, B and C are normed before the scan, without weights."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import mamba, mamba_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.read.add("use_falcon_mambapy")  # of kernels
    return mamba.around(hf, replace(mamba.selective(hf), norms="rms, no weight", norm_eps=hf.number("mixer_rms_eps", 1e-6)))


FAMILY = Family(config=config, rules=mamba.RULES, respell=mamba_fields.respell, architecture="FalconMambaForCausalLM")
