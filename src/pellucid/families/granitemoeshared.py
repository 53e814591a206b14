"""Granite 3 with experts and a network that every token visits (IBM, 2025)."""

from pellucid import config as c
from pellucid.families import granite, granitemoe, llama, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, Rule


def config(hf: Fields) -> c.Config:
    return granite.multiplied(hf, moe_fields.by_softmax(hf, "intermediate_size", shared=hf.integer("shared_intermediate_size", 0, low=0)))


def shared(network: str) -> tuple[Rule, ...]:
    """Return the rules of the network that every token visits, here below the name `network`."""
    disk = "model.layers.{i}.shared_mlp"
    return (
        Rule(f"{disk}.input_linear.*", (f"{network}.gate.*", f"{network}.up.*"), SPLIT),
        Rule(f"{disk}.output_linear.*", f"{network}.down.*"),
    )


FAMILY = Family(
    config=config,
    rules=(*granitemoe.RULES, *shared("layers.{i}.ffn.shared")),
    ignored=llama.IGNORED,
    respell=granitemoe.respell,
    architecture="GraniteMoeSharedForCausalLM",
)
