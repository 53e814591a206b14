"""A page that runs its model from a folder of chunks: its kernels for blocks, its files' hashes, and the page in a browser."""

import base64
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser
from torch.nn import functional as F

import pellucid
from browser import open_file, open_offline_tab, open_tab
from pellucid import ops
from pellucid.api.model import Model, make
from pellucid.errors import UseError
from pellucid.html import live, live_folder
from pellucid.ops.blocks import Blocks
from published import GPT2

PROMPT = "The capital of France is"
NEAR = 2e-5  # of a tensor's largest number
LIBRARY = 300_000  # bytes of the kernels' own data and stack, and what an allocation is rounded up by
FULL = os.environ.get("PELLUCID_FULL") == "1"
KINDS = {  # of models beside a dense decoder, with a prompt of each
    "capitals-t5": "The capital of France is Paris.",
    "capitals-deepseek": "The capital of France is",
    "capitals-bert": "The capital of France is [MASK].",
    "capitals-prefix": "The capital of France is",
}
SPECIMEN = Path(pellucid.__file__).parent / "specimens" / "capitals"
SMALL = GPT2 | {"n_layer": 2, "n_embd": 72, "n_head": 4, "vocab_size": 4480, "n_positions": 64, "n_ctx": 64}  # 72: no multiple of 32


def random_folder(path: Path, fields: dict[str, Any]) -> Path:
    """Save a GPT-2 of random weights, with the tokenizer of a specimen."""
    model = make({**fields, "bos_token_id": 0, "eos_token_id": 0})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.module.named_parameters():
            middle = 1.0 if name.endswith("norm.weight") else 0.0
            p.copy_(torch.randn(p.shape, generator=generator) * 0.08 + middle)
    model.save(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((SPECIMEN / name).read_bytes())
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_folder(tmp_path_factory.mktemp("small") / "model", SMALL)


@pytest.fixture(scope="module", params=["int8", "int4", None])
def site(request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """A model and its folder, in chunks so small that its larger matrices are cut."""
    model = pellucid.load(small, dtype="float32", quant=request.param)
    out = tmp_path_factory.mktemp("site") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_folder, "CHUNK", 60_000)
        patch.setattr(live_folder, "chunks", partial(live_folder.chunks, most=60_000))
        made = live_folder.live_folder(model, out)
    assert made.chunks == len(list(out.glob("*.safetensors"))) > 3
    assert made.bytes == sum(f.stat().st_size for f in out.iterdir())
    return model, out


def numbers_of(answer: dict[str, Any], model: Model, k: int = 0) -> dict[str, torch.Tensor]:
    """Return the tensors of a step of an answer of the driver, in their shapes."""
    shapes = {t["path"]: t["shape"] for t in answer["steps"][k]["tensors"]}
    return {
        path: torch.frombuffer(bytearray(base64.b64decode(x)), dtype=torch.float32).reshape(shapes[path])
        for path, x in answer["numbers"][k].items()
    }


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def worst_product(model: Model, answer: dict[str, Any], product: Callable[..., torch.Tensor]) -> tuple[float, str, int]:
    """Return the largest difference of the page's products from `product` of the very numbers that they read, and how many there were."""
    seen, differences = numbers_of(answer, model), []
    parameters = dict(model.module.named_parameters(remove_duplicate=False))
    for t in answer["steps"][0]["tensors"]:
        if t["op"] == "linear":
            weight, *bias = (parameters[name] for name in t["weights"])
            x = seen[t["inputs"][0]].flatten(2) if seen[t["inputs"][0]].shape[-1] != weight.shape[1] else seen[t["inputs"][0]]
            y = product(x, weight, bias[0] if bias else None)
            differences.append((far(seen[t["path"]].reshape(y.shape), y), t["path"]))
    return (*max(differences), len(differences))


@pytest.mark.quick(4)
def test_products_of_blocks_are_the_kernels(site: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """Each product of the page equals Python's kernel on the page's own inputs, whose codes are the same; a plain product is far off."""
    model, out = site
    answer = driver(out / "index.html", [{"prompt": PROMPT, "steps": 2, "sampling": {}, "tensors": True}])["answers"][0]
    with torch.no_grad():
        worst = worst_product(model, answer, ops.linear)
        assert worst[0] <= NEAR and worst[2] == 2 * 6 + 1, worst
        if isinstance(model.module.embed.weight, Blocks):  # the products of weights in blocks round x too: plain ones differ
            assert worst_product(model, answer, lambda x, w, b: F.linear(x, w.plain(), b))[0] > 20 * NEAR
        ids = torch.tensor([answer["run"]["ids"]])
        assert torch.equal(numbers_of(answer, model)["embed"], model.module.embed(ids))


def test_texts_are_pythons(site: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """The likeliest next tokens, where the two likeliest are not so near that rounding x to int8 may turn them."""
    model, out = site
    prompts = [PROMPT, "Paris", "法国的首都是", "a b c d e f g"]
    answers = driver(out / "index.html", [{"prompt": p, "steps": 1, "sampling": {}} for p in prompts])["answers"]
    compared = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = pellucid.trace(model, prompt, only="logits").last_logits(0)
        top = logits.topk(2).values
        assert answer["run"]["ids"] == model.ids(prompt)
        if float(top[0] - top[1]) > 0.02 * float(logits.abs().max()):
            assert answer["run"]["new"] == [int(logits.argmax())]
            compared += 1
    assert compared > 0


@pytest.mark.quick(4)
def test_a_cells_terms_are_its_weights_numbers(site: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """A cell's sum multiplies the numbers that the codes stand for, of a row from the middle of a matrix."""
    model, out = site
    first = driver(out / "index.html", [{"prompt": PROMPT, "steps": 1, "sampling": {}, "tensors": True}])["answers"][0]
    tensors = first["steps"][0]["tensors"]
    n = next(i for i, t in enumerate(tensors) if t["path"] == "layers.1.ffn.up")
    answer = driver(out / "index.html", [{"prompt": PROMPT, "steps": 1, "sampling": {}, "cells": [(n, [0, 2, 131])]}])["answers"][0]
    weight = dict(model.module.named_parameters())[tensors[n]["weights"][0]]
    row = (weight.plain() if isinstance(weight, Blocks) else weight)[131]
    column = next(x for name, x in answer["terms"][0]["factors"].items() if name.startswith("W"))
    assert torch.equal(torch.tensor(column), row.detach())


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder as `python -m http.server` does."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/#"
        server.shutdown()


@pytest.fixture(scope="module")
def eight(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("eight") / "site"
    live_folder.live_folder(pellucid.load(small, dtype="float32", quant="int8"), out)
    return out


def test_a_served_folder_runs_in_the_browser(browser: Browser, eight: Path, small: Path) -> None:
    model = pellucid.load(small, dtype="float32", quant="int8")
    with served(eight) as url, open_tab(browser, url) as tab:
        tab.go(view="", prompt=PROMPT)
        tab.page.wait_for_selector("[data-answer]")
        assert [int(x) for x in tab.page.locator(".token .id").all_inner_texts()][:-1] == model.ids(PROMPT)
        assert "int8" in tab.page.inner_text("[data-precision]")
        tab.go(prompt=PROMPT, tensor="layers.0.ffn.up.weight", cell="3,5")
        tab.page.wait_for_selector('#reading[data-cell="3,5"]:not([data-value=""])')
        value = float(tab.page.get_attribute("#reading", "data-value") or "nan")
        weight = dict(model.module.named_parameters())["layers.0.ffn.up.weight"]
        assert isinstance(weight, Blocks) and value == pytest.approx(float(weight.plain()[3, 5]), rel=1e-6)


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_a_chunk_that_is_not_whole_is_named(browser: Browser, eight: Path, tmp_path: Path, fault: str) -> None:
    for file in eight.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    chunk = next(tmp_path.glob("*.safetensors"))
    content = bytearray(chunk.read_bytes())
    if fault == "damaged":
        content[-1] ^= 1
        chunk.write_bytes(content)
    else:
        chunk.unlink()
    with served(tmp_path) as url, open_tab(browser, url, refusals=(404,)) as tab:
        tab.page.goto(url)
        tab.page.wait_for_selector("[role=alert]")
        alert = tab.page.inner_text("[role=alert]")
        assert chunk.name in alert and fault in alert and "\n" not in alert
        assert tab.page.locator("[data-answer]").count() == 0


def test_a_folder_opened_from_disk_says_to_serve_it(browser: Browser, eight: Path) -> None:
    with open_offline_tab(browser, eight / "index.html") as tab:
        open_file(tab, eight / "index.html", "[role=alert]")
        assert "http.server" in tab.page.inner_text("[role=alert]")


def test_folders_are_new_and_models_fit(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pellucid.load(small, dtype="float32")
    (tmp_path / "there.txt").write_text("kept")
    with pytest.raises(UseError, match=str(tmp_path)):
        live_folder.live_folder(model, tmp_path)
    monkeypatch.setattr(live_folder, "MOST", 1_000_000)
    with pytest.raises(UseError, match="1000000"):
        live_folder.live_folder(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_texts_length_is_bound_by_its_tensors(small: Path) -> None:
    """The bytes of a run that the limit counts are those that a run has."""
    model = pellucid.load(small, dtype="float32")
    document, _ = live.live_document(model, live.MOST)
    run = pellucid.trace(model, list(range(1, 31)))
    assert live.run_bytes(document["tensors"], 30) - sum(s.value.nbytes for s in run) == 29 * 4 * SMALL["vocab_size"]
    most = live.run_bytes(document["tensors"], 20)
    assert live.longest_within(document["tensors"], 64, most) == 20 and live.longest_within(document["tensors"], 64, most - 1) == 19


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path, int]:
    """A model of another kind with weights in int8, its folder, and the bytes that a tab takes for it."""
    model = pellucid.load(f"pellucid/{request.param}", dtype="float32", quant="int8")
    out = tmp_path_factory.mktemp("kind") / request.param
    return model, out, live_folder.live_folder(model, out).memory


@pytest.mark.quick(2)
def test_other_kinds_run_from_a_folder_in_blocks(kind: tuple[Model, Path, int], driver: Callable[..., Any]) -> None:
    """Logits are those of Python's int8, but for codes of x that rounding moves; what a run and the kernels take lies within the bounds."""
    model, out, memory = kind
    prompt, steps = KINDS[out.name], 1 if out.name == "capitals-bert" else 4
    result = driver(out / "index.html", [{"prompt": prompt, "steps": steps, "sampling": {}, "tensors": True}])
    answer, run = result["answers"][0], pellucid.trace(model, prompt, steps)
    assert answer["run"]["ids"] == model.ids(prompt) and answer["run"]["new"] == list(run.new)
    plain = pellucid.load(f"pellucid/{out.name}", dtype="float32")
    ours, theirs, other = numbers_of(answer, model)["logits"][0, -1], *(pellucid.trace(m, prompt, 1).last_logits(0) for m in (model, plain))
    assert far(ours, theirs) < far(theirs, other) / 4
    document, plan = live.live_document(model, live.MOST)
    tokens = len(model.ids(prompt)) + len(run.new)
    assert answer["bytes"] <= live.run_bytes(document["tensors"], tokens)
    assert result["memory"] <= live_folder.kernel_bytes(plan.document, tokens) + LIBRARY
    assert live_folder.kernel_bytes(plan.document, document["longest"]) < memory


@pytest.mark.quick(2)
def test_a_text_that_grows_by_one_token_keeps_its_bound(kind: tuple[Model, Path, int], driver: Callable[..., Any]) -> None:
    """The keys and values of a latent are made anew for all tokens in each step, and are most of what such a run keeps."""
    model, out, _ = kind
    if out.name == "capitals-bert":
        pytest.skip("an encoder's text does not grow")
    forced = {str(k): 40 + k for k in range(40)}
    answer = driver(out / "index.html", [{"prompt": "a", "steps": 40, "sampling": {}, "forced": forced}])["answers"][0]
    document, _ = live.live_document(model, live.MOST)
    assert len(answer["run"]["new"]) == 40
    assert answer["bytes"] <= live.run_bytes(document["tensors"], len(model.ids("a")) + 40)


@pytest.mark.quick(2)
def test_other_kinds_run_from_a_served_folder(browser: Browser, kind: tuple[Model, Path, int]) -> None:
    model, out, _ = kind
    new = pellucid.trace(model, KINDS[out.name], 1).new
    with served(out) as url, open_tab(browser, url) as tab:
        tab.go(view="", prompt=KINDS[out.name])
        tab.page.wait_for_selector(f'[data-answer="{new[0]}"]')
        assert "int8" in tab.page.inner_text("[data-precision]")


@pytest.mark.skipif(not FULL, reason="GPT-2 small's shape takes minutes: PELLUCID_FULL=1")
def test_gpt2_smalls_shape_runs_in_int8(tmp_path: Path, browser: Browser, driver: Callable[..., Any]) -> None:
    model = pellucid.load(random_folder(tmp_path / "model", GPT2 | {"vocab_size": 50257}), dtype="float32", quant="int8")
    made = live_folder.live_folder(model, tmp_path / "site")
    answer = driver(tmp_path / "site" / "index.html", [{"prompt": PROMPT, "steps": 1, "sampling": {}, "tensors": True}])["answers"][0]
    worst = worst_product(model, answer, ops.linear)
    assert worst[0] <= NEAR and worst[2] == 12 * 6 + 1, worst
    with served(tmp_path / "site") as url, open_tab(browser, url) as tab:
        tab.go(view="", prompt=PROMPT)
        tab.page.wait_for_selector("[data-answer]")
        heap = tab.page.context.new_cdp_session(tab.page).send("Runtime.getHeapUsage")
        assert heap["usedSize"] + heap.get("backingStorageSize", 0) < made.memory
