"""A block's weights sum, tensor by tensor, to its parameters in `count`: in the terminal, on the page and in JSON, in every family."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pellucid
from judge import FAMILIES, judge
from pellucid import catalog
from pellucid.api.count import billed, described
from pellucid.api.model import Model, specimens
from pellucid.config import Config
from pellucid.counting import Bill, Setting, weighed
from pellucid.counting.distinct import PLACE, distinct
from pellucid.counting.meta_run import meta_model
from pellucid.counting.weights import Weight
from pellucid.documents import run, run_view, tensor
from pellucid.documents.formula import block
from pellucid.runs import execute
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop
from pellucid.terminal import run_lines, tables
from pellucid.watching.records import Seen
from tiny import swapped

Sums = dict[str, int]
IDS = [3, 4, 5]


def by_count(bill: Bill) -> Sums:
    """Return the parameters of every block, from the bill's weights. A shared weight counts in the first layer."""
    sums: Sums = {}
    for c in bill.weights:
        place = PLACE.fullmatch(c.path)
        if place is None or not c.weight.parameter:
            continue
        kind = bill.reduced.kind(place)
        for n in kind.numbers if c.times == kind.count else kind.numbers[:1]:
            path = f"{kind.stack}layers.{n}"
            sums[path] = sums.get(path, 0) + c.weight.count
    return sums


def by_table(bill: Bill) -> int:
    """Return the parameters of all blocks together in the rows of `count --table MODEL`."""
    return sum(int(row[4]) for row in tables.blocks(bill).rows if row[0] and row[3] is not None)  # type: ignore[call-overload]


def by_page(kept: Run) -> Sums:
    """Return the sums of the page's tensors of a run's first step."""
    sums = Counter[str]()
    for t in tensor.tensors(kept, 0):
        sums[t["block"]] += t["parameters"] if t["block"] else 0
    return {path: n for path, n in sums.items() if path}


def by_json(document: dict[str, Any]) -> Sums:
    """Return the sums of the tensors of `explain --json`. Fails unless they are its own sums."""
    sums = Counter[str]()
    for t in document["tensors"]:
        if t["step"] == 0 and block(t["path"])[0]:
            sums[block(t["path"])[0]] += t["parameters"]
    assert dict(sums) == {b["path"]: b["parameters"] for b in document["blocks"]}
    return dict(sums)


def by_terminal(view: run_view.RunView) -> tuple[Sums, Sums]:
    """Return from `explain --all` the numbers in headings of blocks, and the sums of the lines of weights below them."""
    headings, lines, at = Sums(), Sums(), ""
    buffers = {path for path, _ in view.model.module.named_buffers()}
    for text in run_lines.story(view, run_lines.Display(width=300, everything=True)):
        if heading := re.fullmatch(r" ((?:\w+\.)?layers\.\d+)  ([\d,]+) parameters", text.plain):
            at = heading[1]
            headings[at] = int(heading[2].replace(",", ""))
        elif (line := re.fullmatch(r" {6}([\w.]+)  .*  = ([\d,]+)  \w+", text.plain)) and line[1] not in buffers and block(line[1])[0]:
            lines[at] = lines.get(at, 0) + int(line[2].replace(",", ""))
    return headings, lines


def sums_of_run(model: Model, prompt: str | list[int]) -> dict[str, Sums]:
    """Run a model. Returns the sums of every output."""
    view = run_view.explain(model, prompt)
    loaded = LoadedModel(model.name, model.family.name, model.module, model)
    headings, lines = by_terminal(view)
    bill = weighed(model.config, model.name, model.family.name, Setting())
    counted = by_count(bill)
    assert by_table(bill) == sum(counted.values())
    page = by_page(execute.recorded(loaded, view.trace, LIMITS))
    return {
        "count": counted,
        "page": page,
        "json": by_json(run.run_document(view.run, view.trace.steps)),
        "headings": headings,
        "lines": lines,
    }


def differing(outputs: dict[str, Sums]) -> list[str]:
    """Return the outputs whose sums are not count's."""
    return [name for name, sums in outputs.items() if sums != outputs["count"]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick(17)
def test_every_familys_blocks_sum_to_their_count(family: str) -> None:
    assert differing(sums_of_run(pellucid.load(judge(family, "plain").folder, dtype="float32"), IDS)) == []


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(4)
def test_every_specimens_blocks_sum_to_their_count(name: str) -> None:
    assert differing(sums_of_run(pellucid.load(name), IDS)) == []


CATALOGUE = [e["id"] for e in catalog.models().values() if "statements" not in e]


def drawn(cfg: Config, name: str, family: str) -> Sums:
    """Return the page's sums of a model on meta."""
    loaded = LoadedModel(name, family, meta_model(cfg, torch.bfloat16), None)
    request = RunRequest(name, None, tuple(IDS))
    return by_page(execute.run_prompt(loaded, request, Stop(), LIMITS))


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.quick(12)
def test_every_published_models_blocks_sum_to_their_count(name: str) -> None:
    """It holds for two layers of each kind, on meta."""
    try:
        family, full = described(name)
    except pellucid.PellucidError:
        pytest.skip("no family here takes it")
    cfg = distinct(full, copies=2).config
    assert drawn(cfg, name, family) == by_count(weighed(cfg, name, family, Setting()))


def test_deepseek_v3s_layers() -> None:
    """All 61 layers have the published numbers: kv_b counts once, and the router's correction not at all."""
    family, cfg = described("deepseek-v3")
    sums = drawn(cfg, "deepseek-v3", family)
    assert (sums["layers.1"], sums["layers.4"]) == (583_483_392, 11_507_286_016)
    assert sums == by_count(billed(cfg, family, "deepseek-v3", context=8))


def test_t5s_table_of_distances_is_the_first_layers() -> None:
    outputs = sums_of_run(pellucid.load("pellucid/capitals-t5"), IDS)
    first, second = (outputs["headings"][f"decoder.layers.{n}"] for n in (0, 1))
    assert first - second == pellucid.load("pellucid/capitals-t5").module.decoder.layers[0].attn.relative.weight.numel()


def every_use(seen: Any, own: dict[str, Weight]) -> Any:
    """Yield all weights of each record, whether an earlier one used them or not: a mutant."""
    s: Seen
    for s in seen:
        yield tuple(own[path] for path in s.weights if path in own)


def with_buffers(weights: Any) -> int:
    """Count buffers as parameters: a mutant."""
    return sum(w.count for w in weights)


# A function, its stand-in, a family whose sums it changes, and the modules that each make some of the outputs with it.
MUTANTS: dict[str, tuple[str, Callable[..., Any], str, tuple[Any, ...]]] = {
    "a weight counted twice": ("by_first_use", every_use, "deepseek_v3", (tensor, run_view)),
    "a table counted in each layer that reads it": ("by_first_use", every_use, "t5", (tensor, run_view)),
    "a buffer counted as weight": ("parameters", with_buffers, "deepseek_v3", (tensor, run)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_law_sees(mutant: str) -> None:
    name, stand_in, family, modules = MUTANTS[mutant]
    model = pellucid.load(judge(family, "plain").folder, dtype="float32")
    for module in modules:
        with swapped(module, name, stand_in):
            assert differing_or_all(model)


def differing_or_all(model: Model) -> list[str]:
    """Return `differing`; sums that contradict each other within one document count too."""
    try:
        return differing(sums_of_run(model, IDS))
    except AssertionError:
        return ["json"]
