"""A block's cards stand under the names of its parts, in the order in which they ran, those that run side by side beside each other."""

from typing import Any

import pytest
from playwright.sync_api import Browser

import pellucid
from browser import Tab, open_tab, serve_from_thread
from pellucid.messages import phrases
from tiny import random_folder

PROMPT = "The capital of France is"
PARTS = """all => all.map(e => ({ ...e.dataset, says: e.querySelector("b").textContent,
  top: e.getBoundingClientRect().top, left: e.getBoundingClientRect().left }))"""
PARALLEL = {
    "model_type": "gpt_neox", "hidden_size": 32, "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 32,
    "use_parallel_residual": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def headings(tab: Tab) -> list[dict[str, Any]]:
    """Return the headings of all open blocks."""
    tab.page.wait_for_selector("[data-part][data-ratio]:not([data-ratio=''])")
    tab.settle()
    parts: list[dict[str, Any]] = tab.page.eval_on_selector_all(".river [data-part]", PARTS)
    return parts


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("capitals", ["embedding", "attention", "feed", "probabilities"]),
        ("capitals-deepseek", ["attention", "feed", "attention", "experts", "probabilities"]),
        ("capitals-t5", ["attention", "feed", "attention", "cross", "feed", "probabilities"]),
    ],
)
@pytest.mark.quick(2)
def test_parts_are_named_in_their_order(tab: Tab, name: str, kinds: list[str], lang: str) -> None:
    model = pellucid.load(f"pellucid/{name}", dtype="float32")
    trace = pellucid.trace(model, PROMPT)
    tab.go(lang, model=model.name, prompt=PROMPT)
    shown = headings(tab)
    assert [one["part"] for one in shown] == kinds
    assert [one["says"] for one in shown] == [phrases(lang)[f"page.heading.{kind}"] for kind in kinds]
    assert sorted(shown, key=lambda one: one["top"]) == shown
    for one in shown:
        if not one["of"]:
            continue
        own = {"attention": "attn", "cross": "cross", "feed": "ffn", "experts": "ffn"}[one["part"]]
        part, total = f"{one['of']}.{own}", next(s for s in trace if s.path.startswith(one["of"]) and f"{one['of']}.{own}" in s.inputs)
        row = trace[part].shape[1] - 1
        norms = [float(trace[path].value[0, row].double().norm()) for path in (part, total.inputs[0])]
        assert float(one["ratio"]) == pytest.approx(norms[0] / norms[1], rel=1e-6)
        if one["part"] == "attention":
            pattern = trace[f"{part}.pattern"].value[0, :, row].double().mean(0)
            shares = (
                {int(key): float(share) for key, share in (pair.split(":") for pair in one["reads"].split())} if one.get("reads") else {}
            )
            assert all(share == pytest.approx(float(pattern[key]), rel=1e-5) for key, share in shares.items())


def test_costs_are_shares_of_the_block(tab: Tab) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    tab.go(prompt=PROMPT)
    own = {one["part"]: one for one in headings(tab) if one["of"] == "layers.0"}
    weights = {name: p.numel() for name, p in model.module.named_parameters() if name.startswith("layers.0.")}
    attention = sum(n for name, n in weights.items() if name.startswith("layers.0.attn"))
    assert float(own["attention"]["weights"]) == pytest.approx(attention / sum(weights.values()), rel=1e-12)
    assert float(own["attention"]["weights"]) + float(own["feed"]["weights"]) == pytest.approx(1)
    assert 0 < float(own["attention"]["flops"]) < 1


def test_the_chosen_token_is_the_one_that_is_told_of(tab: Tab) -> None:
    trace = pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT)
    tab.go(prompt=PROMPT, position=1)
    one = next(one for one in headings(tab) if one["part"] == "attention")
    norms = [float(trace[path].value[0, 1].double().norm()) for path in ("layers.0.attn", "start")]
    assert float(one["ratio"]) == pytest.approx(norms[0] / norms[1], rel=1e-6)
    assert "·capital" in tab.page.locator("[data-part=attention]").first.inner_text()


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_parts_stand_beside_each_other(browser: Browser, tmp_path: Any, parallel: bool) -> None:
    random_folder(PARALLEL | {"use_parallel_residual": parallel}, tmp_path)
    with serve_from_thread(str(tmp_path), dtype="float32") as address, open_tab(browser, address) as tab:
        for width, side_by_side in ((1440, parallel), (390, False)):
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.go(prompt="#5 7 9")
            attention, feed = [one for one in headings(tab) if one["of"] == "layers.0"]
            assert (attention["part"], feed["part"]) == ("attention", "feed")
            assert (attention["top"] == feed["top"] and attention["left"] < feed["left"]) is side_by_side
            assert (feed["top"] > attention["top"]) is not side_by_side
            assert tab.page.locator("[data-parallel]").count() == parallel
