"""The measured effect of a head or a part stands beside its direct one: the change of a logit in a run without it."""

import pytest
import torch
from playwright.sync_api import expect
from torch import Tensor

import pellucid
from browser import Tab
from pellucid.api.model import Model

PROMPT = "The capital of France is"


def without(model: Model, ids: list[int], row: int, id: int, path: str, head: int | None) -> float:
    """Return the change of a logit in a forward with zeros in the place of a head or a part."""

    def zero(x: Tensor) -> Tensor:
        (x if head is None else x[:, :, head]).zero_()
        return x

    key = path if head is None else f"{path}.z"
    with torch.no_grad():
        unedited = model(torch.tensor([ids]))
        with pellucid.watch(model, edit={key: zero}):
            return float((model(torch.tensor([ids])) - unedited)[0, row, id])


@pytest.mark.parametrize(
    ("name", "block", "steps", "step"),
    [
        ("pellucid/capitals", "layers.0", 1, 0),
        ("pellucid/capitals", "layers.2", 2, 1),
        ("pellucid/capitals-llama", "layers.1", 1, 0),
        ("pellucid/capitals-bert", "layers.0", 1, 0),
    ],
)
@pytest.mark.quick(4)
def test_the_measured_effect_is_that_of_a_run(tab: Tab, name: str, block: str, steps: int, step: int) -> None:
    model = pellucid.load(name, dtype="float32")
    prompt = f"{PROMPT} ___." if name.endswith("bert") else PROMPT
    run = pellucid.trace(model, prompt, steps)
    row, id = (run.blanks[0], run.new[0]) if run.blanks else (-1, run.new[step])
    tab.go(view="next", model=name, prompt=prompt, block=block, steps=steps, step=step)
    tab.page.click("[data-measure-added]")
    heads = model.config.layers[0].attn.heads
    tab.page.wait_for_function("n => document.querySelectorAll('[data-measured]').length === n", arg=heads + 1)
    effects = dict(tab.page.locator("[data-without]").evaluate_all("all => all.map(e => [e.dataset.without, Number(e.dataset.measured)])"))
    ids = [*run.ids, *run.new[:step]]
    for head in range(heads):
        assert effects[f"{block}.attn {head}"] == pytest.approx(without(model, ids, row, id, f"{block}.attn", head), abs=2e-4)
    assert effects[f"{block}.ffn"] == pytest.approx(without(model, ids, row, id, f"{block}.ffn", None), abs=2e-4)
    direct = tab.page.locator("[data-head='0'][data-added]").first
    if block == "layers.0" and name == "pellucid/capitals":  # the two are far apart: the direct effect is not what the head does
        assert abs(effects["layers.0.attn 0"]) > 5 > 10 * abs(float(direct.get_attribute("data-added") or "nan"))


def test_another_token_knows_nothing_of_what_was_measured(tab: Tab) -> None:
    tab.go(view="next", prompt=PROMPT, block="layers.3")
    tab.page.click("[data-measure-added]")
    tab.page.wait_for_selector("[data-measured]")
    tab.page.locator("[data-layer] .cell:not(.followed)").first.click()
    expect(tab.page.locator("[data-measured]")).to_have_count(0)
    tab.settle()
    assert tab.page.locator("[data-measured]").count() == 0


def test_a_measured_number_opens_its_run(tab: Tab) -> None:
    tab.go(view="next", prompt=PROMPT, block="layers.0")
    tab.page.click("[data-measure-added]")
    tab.page.locator("[data-without='layers.0.attn 0'] button").click()
    expect(tab.page.locator(".edits li")).to_contain_text("layers.0.attn.z")
    tab.page.wait_for_selector("[data-differ]")
