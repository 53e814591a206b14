"""Rotary positions on a stretched base, in a page that runs its model and in a saved file: numbers and sums are Python's."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser

import pellucid
from browser import open_file, open_offline_tab
from live_pages import NEAR, far, unlike, values
from pellucid.api.model import Model, make
from pellucid.documents.cell import terms_document
from pellucid.documents.run import run_document, step_document
from pellucid.documents.run_map import map_document
from pellucid.html.file import inert
from pellucid.html.live import live_page, run_bytes
from pellucid.runs.execute import full_record, run_prompt
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop

SPECIMEN = Path(pellucid.__file__).parent / "specimens" / "capitals"
SMALL = {
    "model_type": "llama",
    "vocab_size": 4480,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
PHI = {"model_type": "phi3", "pad_token_id": 0, "original_max_position_embeddings": 16, "max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
STRETCHED: dict[str, dict[str, Any]] = {
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "factor": 8.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "dynamic": {"factor": 4.0},
    "longrope": FACTORS,
}
PROMPT, NEW = "The capital of France is Paris. The capital of Japan is", 7
LEFT = ("terms", "error", "labels", "source")  # of a tensor's document: scores come from the page's script, beside the kernel
ROTATED = ("layers.0.attn.q_rot", "layers.1.attn.k_rot")


def stretched(kind: str, folder: Path) -> Model:
    """Save a small model of random weights, stretched as `kind`, with a specimen's tokenizer. Returns it as loaded."""
    own = {"rope_scaling": {"rope_type": kind, **STRETCHED[kind]}}
    model = make({**SMALL, **(PHI if kind == "longrope" else {}), **own}, dtype=torch.float32)
    draw = torch.Generator().manual_seed(1)
    for name, p in model.module.named_parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.2 + float(name.endswith("norm.weight"))
    model.save(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((SPECIMEN / name).read_bytes())
    return pellucid.load(folder)


def run_of(model: Model, ids: list[int]) -> Run:
    return run_prompt(LoadedModel.of(model), RunRequest(model.name, ids=tuple(ids), new=NEW), Stop(), LIMITS)


@pytest.fixture(scope="module", params=STRETCHED)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    model = stretched(request.param, folder / "model")
    (folder / "page.html").write_text(live_page(model), encoding="utf-8")
    return model, folder / "page.html"


@pytest.mark.quick(2)
def test_rows_cells_and_maps_are_pythons(opened: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """The text grows past 16 tokens: a base by the text's length stretches further, or LongRoPE reads the whole text again."""
    model, path = opened
    ids = model.ids(PROMPT)
    assert len(ids) < 16 < len(ids) + NEW
    run, exact = run_of(model, ids), run_of(pellucid.load(path.with_name("model"), dtype="float64"), ids)
    again = [k for k in range(1, NEW) if len(run.fed(k)[0]) > 1]
    assert again == ([17 - len(ids)] if path.parent.name.startswith("longrope") else [])
    cells = [(n, tuple(size - 1 - (size > 2 and axis > 1) for axis, size in enumerate(s.shape))) for n, s in enumerate(run.trace.seen)]
    cells = [(n, at) for n, at in cells if run.trace.seen[n].path in (*ROTATED, "layers.1.attn.scores", "layers.1.attn.z")]
    answer = driver(path, [{"prompt": PROMPT, "steps": NEW, "sampling": {}, "tensors": True, "cells": cells}])["answers"][0]
    assert answer["run"]["ids"] == ids and answer["run"]["new"] == run.trace.new == exact.trace.new
    assert [(s["fed"], s["past"]) for s in answer["run"]["steps"]] == [run.fed(k) for k in range(NEW)]
    for k, numbers in enumerate(answer["numbers"]):
        theirs = {s.path: s for s in exact.trace if s.step == k}
        assert numbers.keys() == theirs.keys()
        worst = max((far(values(x, list(theirs[p].shape)), theirs[p].value), p) for p, x in numbers.items())
        assert worst[0] <= NEAR, (k, worst)
        own = step_document(run, k)["tensors"]
        for one, other in zip(answer["steps"][k]["tensors"], json.loads(json.dumps(own)), strict=True):
            assert unlike({**one, **dict.fromkeys(LEFT)}, {**other, **dict.fromkeys(LEFT)}) == [], (k, other["path"])
        assert unlike(answer["steps"][k]["map"]["stacks"], json.loads(json.dumps(map_document(run, k, Stop())["stacks"]))) == []
    assert answer["run"]["masks"] == json.loads(json.dumps(run_document(run)["masks"]))
    for (n, at), ours in zip(cells, answer["terms"], strict=True):
        theirs = terms_document(run, full_record(run, n, Stop(), terms=True), ",".join(map(str, at)), LIMITS)
        assert unlike(ours, {name: theirs[name] for name in ours}) == [], (run.trace.seen[n].path, at)


def unstretched(document: dict[str, Any]) -> None:
    """Let cells be turned by the plain base, and no text be read again."""
    document["restarts"] = []
    for t in document["tensors"]:
        t["settings"].pop("scaling", None)


@pytest.mark.quick(2)
def test_a_plain_base_is_seen(opened: tuple[Model, Path], driver: Callable[..., Any], tmp_path: Path) -> None:
    """The mutant: of a base that the text's length stretches, sums are others; without a second reading, so are LongRoPE's rows."""
    model, path = opened
    if not path.parent.name.startswith(("dynamic", "longrope")):
        pytest.skip("its frequencies lie in the plan")
    run = run_of(model, model.ids(PROMPT))
    text = path.read_text(encoding="utf-8")
    match = re.search(r'id="live">([^<]*)<', text)
    assert match is not None
    document = json.loads(match[1])
    unstretched(document)
    changed = tmp_path / "changed.html"
    changed.write_text(text[: match.start(1)] + inert(document) + text[match.end(1) :], encoding="utf-8")
    n = next(n for n, s in enumerate(run.trace.seen) if s.path == ROTATED[0] and s.step == NEW - 1)
    request = {"prompt": PROMPT, "steps": NEW, "sampling": {}, "tensors": True, "cells": [(n, (0, 0, 1, 2))]}
    ours, theirs = (driver(page, [request])["answers"][0] for page in (path, changed))
    assert abs(ours["terms"][0]["total"] - theirs["terms"][0]["total"]) > 1e-3
    moved = far(*(values(answer["numbers"][-1]["logits"], [-1]) for answer in (ours, theirs)))
    assert (moved > 100 * NEAR) == path.parent.name.startswith("longrope")


def test_what_is_read_again_is_counted() -> None:
    tensors = [{"path": "x", "op": "linear", "dims": "B T D", "shape": [1, "T", 10], "source": "executed"}]
    assert run_bytes(tensors, 20, [16]) == 4 * 10 * (20 + 16)
    assert run_bytes(tensors, 16, [16]) == 4 * 10 * 16


@pytest.mark.parametrize("kind", ["yarn", "longrope"])
@pytest.mark.quick(2)
def test_a_saved_file_turns_by_a_stretched_base(browser: Browser, kind: str, tmp_path: Path) -> None:
    """In the last step, whose rows LongRoPE has read twice."""
    model = stretched(kind, tmp_path / "model")
    trace = pellucid.trace(model, model.ids(PROMPT), NEW, terms=True)
    file = tmp_path / "trace.html"
    trace.save_html(file, cells=200)
    with open_offline_tab(browser, file) as tab:
        for path, cell in ((ROTATED[0], (0, 0, 1, 2)), (ROTATED[1], (0, 0, 1, 5)), ("layers.1.attn.scores", (0, 2, 0, 3))):
            seen, at = trace.all(path)[-1], ",".join(map(str, cell))
            open_file(tab, file, f'#reading[data-cell="{at}"]:not([data-value=""])', steps=NEW, step=NEW - 1, tensor=path, cell=at)
            tab.page.wait_for_selector("[data-sum], aside > p.soft")
            assert seen.terms is not None and tab.page.locator("[data-sum]").count() == 1, path
            assert tab.formula_sum() == pytest.approx(seen.terms(cell).total(), rel=3e-6), path
