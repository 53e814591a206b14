"""A model that does not fit is refused in one line: what the exhibit needs, and the fields of the model's Config that are otherwise."""

import re
from dataclasses import replace
from typing import Any

import pytest

import pellucid
from pellucid.analysis import needs
from pellucid.analysis.needs import DENSE, ROUTED, Need, unmet
from pellucid.api.switching import written
from pellucid.config import Config
from pellucid.errors import UseError
from pellucid.exhibits import find, names
from pellucid.exhibits.exhibit import run_exhibit
from pellucid.messages import phrases, speaking

SPECIMENS = ("capitals", "capitals-llama", "capitals-deepseek", "capitals-bert", "capitals-t5", "capitals-prefix", "reader")
MODELS = {name: pellucid.load(f"pellucid/{name}", device="meta") for name in SPECIMENS}
EVERY = [(name, model) for name in names() for model in SPECIMENS if not find(name).own]


def refusal(name: str, model: str) -> str:
    """Return the line that refuses a model. "" if it fits."""
    if find(name).fits(MODELS[model].config):
        return ""
    with pytest.raises(UseError) as refused:
        run_exhibit(find(name), MODELS[model])
    return str(refused.value)


def at(cfg: Config, path: str) -> Any:
    """Return what a Config has at a path, read by Python itself."""
    return eval("cfg." + re.sub(r"\.(\d+)\.", r"[\1].", path), {"cfg": cfg})


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_names_the_need_and_the_fields(lang: str) -> None:
    sentences = {key: text for key, text in phrases(lang).items() if key.startswith("need.")}
    with speaking(lang):
        lines = {(name, model): line for name, model in EVERY if (line := refusal(name, model))}
    assert len(lines) > 50
    for (name, model), line in lines.items():
        need, has = unmet(find(name).needs, MODELS[model].config) or (None, "")
        assert need is not None and sentences[f"need.{need.what}"].format(**dict(need.numbers)) in line and has in line, line
        assert "\n" not in line and f"pellucid/{model}" in line and find(name).model in line
        for path, value in (place.split("=") for place in has.split(", ") if "*" not in place):
            own: Any = at(MODELS[model].config, path)
            plain = f"{len(own)} × Layer" if isinstance(own, tuple) else str(own)
            assert value in (plain, type(own).__name__, {"None": "none", "True": "on", "False": "off"}.get(plain)), line


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("heads", "capitals-t5", "needs a model without an encoder; pellucid/capitals-t5 has encoder=3 × Layer"),
        ("norms", "capitals-bert", "each token seeing none after it; pellucid/capitals-bert has bidirectional=on"),
        ("ragged", "capitals-prefix", "needs a prompt whose tokens see no later ones; pellucid/capitals-prefix has prefix=on"),
        ("heads", "capitals-deepseek", "; pellucid/capitals-deepseek has layers.0.attn.kind=MLA"),
        ("latent", "capitals", "needs latent attention (MLA) in every block; pellucid/capitals has layers.0.attn.kind=MHA"),
        ("routing", "capitals", "needs experts in a block; pellucid/capitals has layers.*.ffn.experts=0"),
        ("places", "capitals", "needs a model without a table of positions; pellucid/capitals has positions=64"),
        ("ladder", "capitals", "needs positions for 128 tokens; pellucid/capitals has positions=64"),
        ("library", "capitals-llama", "needs a first block with a key for every head; pellucid/capitals-llama has layers.0.attn.kind=GQA"),
    ],
)
def test_the_line(name: str, model: str, words: str) -> None:
    assert words in refusal(name, model)


def test_every_sentence_is_of_a_need() -> None:
    own = {one.what for group in vars(needs).values() for one in (group if isinstance(group, tuple) else [group]) if isinstance(one, Need)}
    assert {f"need.{what}" for what in own} == {key for key in phrases("en") if key.startswith("need.")}


def test_one_block_is_enough_to_refuse() -> None:
    """Block 0 of the specimen is dense, the others have experts. The mutants: block 0 alone is read; one dense block is enough."""
    cfg = MODELS["capitals-deepseek"].config
    assert DENSE.unmet(cfg) == f"layers.1.ffn.experts={cfg.layers[1].ffn.experts}" and not unmet(ROUTED, cfg)
    assert not replace(DENSE, some=True).unmet(cfg) and not replace(DENSE, paths="layers.0.ffn.experts").unmet(cfg)


@pytest.mark.parametrize("change", [{"corrected": False}, {"corrects_logits": True}, {"normalised": False}, {"affinity": "softmax"}])
def test_each_field_of_a_router_decides(change: dict[str, Any]) -> None:
    """The mutants: experts without a correction, or with one of logits, shares as they are, scores by a softmax."""
    cfg = MODELS["capitals-deepseek"].config
    layers = [layer if not layer.ffn.experts else replace(layer, ffn=replace(layer.ffn, **change)) for layer in cfg.layers]
    need, has = unmet(ROUTED, replace(cfg, layers=tuple(layers))) or (None, "")
    ((field, value),) = change.items()
    assert need is not None and has.endswith(f"layers.1.ffn.{field}={written(value)}")
