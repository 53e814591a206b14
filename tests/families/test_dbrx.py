"""DBRX's published files name the base of its turn among the fields of attention alone, which transformers 5 passes over."""

from judge import judge
from pellucid.config import Attention
from pellucid.families import understand


def test_the_base_is_that_of_the_attention() -> None:
    raw = judge("dbrx").config
    published = {k: v for k, v in raw.items() if k != "rope_parameters"} | {"attn_config": raw["attn_config"] | {"rope_theta": 500_000}}
    attn = understand(published)[1].layers[0].attn
    assert isinstance(attn, Attention) and attn.rope is not None and attn.rope.theta == 500_000.0
