"""A saved file takes cells apart that it carries no terms of: from the tensors' values, and a weight's numbers beside a carried cell."""

import base64
import json
import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

import pellucid
from browser import Tab, open_offline_tab, turn_file
from covering import FULL
from kinds.lfm2 import KIND
from pellucid.api.model import make
from pellucid.html.file import inert
from pellucid.messages import phrases
from pellucid.tracing import Trace
from pellucid.watching.records import Seen

PROMPT = "The capital of France is"
SUMS = {  # the largest difference from Python's sum, by the sum of magnitudes: z is made of float32 shares here
    "layers.0.attn_norm": 1e-12,
    "layers.1.attn.q": 1e-12,
    "layers.0.attn.scores": 1e-12,
    "layers.1.attn.pattern": 1e-12,
    "layers.0.attn.z": 2e-7,
    "layers.1.ffn.neurons": 1e-12,
    "layers.2.ffn": 1e-12,
}
LATENT = {  # what turns, what is grown from a latent, and what reads both; angles are float32 in Python
    "layers.0.attn.q_rot": 3e-7,
    "layers.1.attn.k_shared": 3e-7,
    "layers.1.attn.k": 1e-12,
    "layers.1.attn.scores": 1e-12,
    "layers.2.attn.z": 2e-7,
}
GROUPED = ("layers.0.attn.scores", "layers.1.attn.z", "layers.0.attn_norm", "layers.1.attn.k_rot")
CONVOLVED = KIND.tiny | {"model_type": "lfm2", "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 0}


def saved(trace: Trace, path: Path, cells: int = 6000) -> Path:
    trace.save_html(path, cells=cells)
    return path


def first_row(seen: Seen) -> tuple[int, ...]:
    """Return the least cell of the first token that any head may see: its terms are in no small file."""
    axes = seen.dims.split()
    cut = seen.value[tuple(slice(0, 1) if a in "TS" else slice(None) for a in axes)]
    return tuple(int(i) for i in torch.unravel_index(cut.argmin(), cut.shape))


def opened(tab: Tab, file: Path, path: str, cell: tuple[int, ...], step: int = 0, steps: int = 2) -> bool:
    """Open a cell. Returns whether it has a sum."""
    at = ",".join(map(str, cell))
    here = f'aside[aria-label="{path}"] #reading[data-cell="{at}"]:not([data-value=""])'
    turn_file(tab, file, here, steps=steps, step=step, tensor=path, cell=at)
    tab.page.wait_for_selector("[data-sum], aside > p.soft")
    return tab.page.locator("[data-sum]").count() > 0


def check(tab: Tab, file: Path, seen: Seen, bound: float) -> None:
    """Check that a cell's sum is Python's."""
    cell = first_row(seen)
    assert seen.terms is not None
    terms = seen.terms(cell)
    assert opened(tab, file, seen.path, cell, seen.step or 0), seen.path
    assert abs(tab.formula_sum() - terms.total()) <= bound * float(terms.summands.abs().sum()), seen.path


@pytest.fixture(scope="module")
def trace() -> Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT, 2, terms=True)


@pytest.fixture(scope="module")
def file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(trace, tmp_path_factory.mktemp("sums") / "trace.html")


def test_sums_are_pythons(browser: Browser, trace: Trace, file: Path, tmp_path: Path) -> None:
    grouped = pellucid.trace(pellucid.load("pellucid/capitals-llama", dtype="float32"), PROMPT, 2, terms=True)
    with open_offline_tab(browser, file) as tab:
        for path, bound in [*SUMS.items()][:: 1 if FULL else 2]:
            check(tab, file, trace.all(path)[0], bound)
        late = trace.all("layers.2.attn.scores")[1]  # a query that meets the keys of the step before
        assert opened(tab, file, late.path, (0, 2, 0, 1), 1) and late.terms is not None
        assert tab.formula_sum() == pytest.approx(late.terms((0, 2, 0, 1)).total(), rel=1e-9)
        assert phrases("en")["page.beyond"].split("{")[0] not in tab.page.inner_text("aside")
    llama = saved(grouped, tmp_path / "llama.html", 12_000)
    with open_offline_tab(browser, llama) as tab:
        for path in GROUPED if FULL else GROUPED[:2]:
            check(tab, llama, grouped.all(path)[0], 2e-7)


def test_sums_of_latents_rotations_and_convolutions(browser: Browser, tmp_path: Path) -> None:
    """Of a step behind another: its rows are at positions of their own, and read those of the step before."""
    latent = pellucid.trace(pellucid.load("pellucid/capitals-deepseek", dtype="float32"), PROMPT, 2, terms=True)
    file = saved(latent, tmp_path / "latent.html", 12_000)
    made = make(CONVOLVED, dtype=torch.float32)
    for name, p in made.module.named_parameters():
        p.data = torch.randn(p.shape, generator=torch.Generator().manual_seed(7)) * 0.3 + (p.ndim == 1 and "norm" in name)
    convolved = pellucid.trace(made, [3, 8, 200, 17, 5], 2, terms=True)
    other = saved(convolved, tmp_path / "convolved.html", 12_000)
    with open_offline_tab(browser, file) as tab:
        for path, bound in [*LATENT.items()][:: 1 if FULL else 2]:
            check(tab, file, latent.all(path)[1], bound)
    with open_offline_tab(browser, other) as tab:
        for seen in [s for s in convolved if s.op == "convolve" and s.path.startswith("layers.0")]:
            check(tab, other, seen, 1e-12)


def test_a_trace_without_terms_has_the_sums_of_its_values(browser: Browser, tmp_path: Path) -> None:
    """In bfloat16, as the specimen is stored; what needs a weight says that the file lacks it."""
    plain = pellucid.trace(pellucid.load("pellucid/capitals"), PROMPT)
    file = saved(plain, tmp_path / "plain.html")
    with open_offline_tab(browser, file) as tab:
        for path in ("layers.0.attn.scores", "layers.1.attn.pattern", "layers.0.attn.z", "layers.0.mid"):
            assert opened(tab, file, path, first_row(plain[path]), steps=1), path
        assert not opened(tab, file, "layers.0.attn.q", (0, 0, 0, 0), steps=1)
        assert phrases("en")["page.untold"] in tab.page.inner_text("aside > p.soft")


def test_a_sum_that_is_not_the_cells_is_not_shown(browser: Browser, trace: Trace, file: Path, tmp_path: Path) -> None:
    text = file.read_text(encoding="utf-8")
    match = re.search(r'id="recorded">(.*?)</script>', text, re.S)
    assert match is not None
    data = json.loads(match[1])
    q = trace.all("layers.0.attn.q")[0]
    stored = data["tensors"][str(trace.seen.index(q))]
    stored["bytes"] = base64.b64encode((2 * q.value).numpy().tobytes()).decode()  # another query than the one that ran
    other = tmp_path / "other.html"
    other.write_text(text[: match.start(1)] + inert(data) + text[match.end(1) :], encoding="utf-8")
    scores = trace.all("layers.0.attn.scores")[0]
    with open_offline_tab(browser, other) as tab:
        assert not opened(tab, other, scores.path, first_row(scores))
