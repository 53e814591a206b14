"""What the page draws is what a fresh load of its address draws: every canvas and every text, after every change that is made in it.

PELLUCID_FULL=1 walks all specimens, folders of other families and a model of shapes alone, through every view, prompt, step and edit.
"""

import json
import os
import shutil
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser

from browser import serve_from_thread
from pellucid.api.model import SPECIMENS, load, make, specimens
from walks import Gesture, Walk, address, back, language, model, press, prompt, route, theme, view, walking

FULL = bool(os.environ.get("PELLUCID_FULL"))
PROMPT, OTHER = "The capital of France is", "Paris is the capital of"
PROMPTS = [OTHER, "The capital of Japan is", "Tokyo", "法国的首都是", PROMPT]
EDITS = [
    [["layers.0.mid", "0,1,:", "times", "0"]],
    [["layers.1.attn_norm", "0,:,3", "to", "2"]],
    [["layers.0.mid", ":,:,:", "prompt", OTHER]],
]
NEIGHBOUR = "pellucid/capitals-prefix"
SAMPLED = "temperature:2 seed:3"
TILES = ["scores", "pattern", "logits"]  # endings of paths; of each the first that is there
# A few changes in each view, so that all views and all kinds of change occur; each is of a specimen that has something to show in it.
QUICK: list[tuple[str, str, list[str]]] = [
    ("pellucid/capitals", "map", ["prompt", "theme"]),
    ("pellucid/capitals", "life", ["step"]),
    ("pellucid/capitals", "tile", ["cell"]),
    ("pellucid/capitals", "next", ["sampling"]),
    ("pellucid/capitals-llama", "attention", ["language"]),
    ("pellucid/capitals-deepseek", "experts", ["position"]),
    ("pellucid/capitals-deepseek", "life", ["model"]),
    ("pellucid/capitals", "chat", ["language"]),
    ("pellucid/capitals-t5", "cache", ["back"]),
    ("pellucid/capitals-bert", "next", ["prompt"]),
    ("pellucid/capitals-prefix", "change", ["edits", "against"]),
    ("pellucid/capitals-prefix", "budget", ["model"]),
    ("pellucid/reader", "attention", ["head"]),
]
FAMILIES = [
    {"model_type": "qwen3", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
     "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-6},
    {"model_type": "mixtral", "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
     "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "num_local_experts": 4, "num_experts_per_tok": 2,
     "sliding_window": None},
    {"model_type": "gemma2", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
     "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 3, "query_pre_attn_scalar": 16},
]  # fmt: skip

# Each keeps what it had: the first picture of a head, of a card, of a cache, or the first text of a place, whatever is run after it.
KEPT_PICTURE = """(() => {
  const had = new Map(), own = CanvasRenderingContext2D.prototype.putImageData;
  CanvasRenderingContext2D.prototype.putImageData = function (image, ...how) {
    const at = [...document.querySelectorAll("SELECTOR")].indexOf(this.canvas), key = [at, image.width, image.height, ...how].join();
    if (at >= 0 && !had.has(key)) had.set(key, image);
    return own.call(this, at >= 0 ? had.get(key) : image, ...how);
  };
})();"""
KEPT_ANSWER = """(() => {
  const had = new Map(), own = window.fetch;
  window.fetch = async function (where, how) {
    const key = String(where).replace(/runs\\/[^/]+\\//, "").replace(/id=[0-9]+/, "");
    if (!new RegExp("PLACE").test(key)) return own.call(this, where, how);
    if (!had.has(key)) had.set(key, await own.call(this, where, how));
    return had.get(key).clone();
  };
})();"""
# From the second request on: a run that was not asked for with its settings.
GREEDILY = """(() => {
  const own = window.fetch;
  let runs = 0;
  window.fetch = (where, how) => {
    const run = how?.method === "POST" && /[/]runs[?]/.test(String(where));
    return own.call(window, where, run && runs++ > 0 ? { ...how, body: how.body.replace(/,"sampling":{[^}]*}/, "") } : how);
  };
})();"""
MUTANTS: dict[str, tuple[str, str, str, list[str]]] = {
    "heads keep their pictures": (KEPT_PICTURE.replace("SELECTOR", ".heads canvas"), "pellucid/capitals", "attention", ["prompt"]),
    "cards keep their pictures": (KEPT_PICTURE.replace("SELECTOR", ".card canvas"), "pellucid/capitals", "life", ["prompt"]),
    "slices are known without their run": (KEPT_ANSWER.replace("PLACE", "tensors/[0-9]+[?]"), "pellucid/capitals", "tile", ["prompt"]),
    "the lens is known without its run": (KEPT_ANSWER.replace("PLACE", "steps/[0-9]+/lens"), "pellucid/capitals", "next", ["prompt"]),
    "the experts are another prompt's": (
        KEPT_PICTURE.replace("SELECTOR", ".router canvas"), "pellucid/capitals-deepseek", "experts", ["prompt"],
    ),
    "a run is drawn greedily whatever the address says": (GREEDILY, "pellucid/capitals", "next", ["sampling"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with serve_from_thread("pellucid/capitals") as url:
        yield url


def gestures(walk: Walk, name: str) -> dict[str, Gesture]:
    """Return every kind of change, for a run of this model."""
    return {
        "prompt": prompt(f"{OTHER} ___." if "bert" in name else OTHER),
        "model": model(NEIGHBOUR if name != NEIGHBOUR else "pellucid/capitals"),
        "step": address(step=1),
        "head": address(head=2),
        "position": address(position=1),
        "cell": address(cell=walk.page.evaluate("document.querySelector('[data-axes]')?.dataset.axes === '4' ? '0,1,2,1' : '1,1'")),
        "sampling": address(sampling=SAMPLED),
        "edits": address(edits=json.dumps(EDITS[0])),
        "against": address(against=OTHER),
        "back": back,
        "theme": theme,
        "language": language,
    }


def begin(walk: Walk, name: str, where: str, **more: object) -> bool:
    """Open a model in a view, or at a tensor whose path ends in the tile's name. False if it has none."""
    blank = "bert" in name  # a model that fills blanks takes no steps
    walk.open(model=name, prompt=f"{PROMPT} ___." if blank else PROMPT, steps=1 if blank else 3, **more)
    if where == "tile" or where.startswith("tile:"):
        ending = where.partition(":")[2] or "scores"
        path = walk.page.evaluate(
            "e => [...document.querySelectorAll('.river [data-path]')].map(c => c.dataset.path).find(p => p.endsWith(e))", ending
        )
        return bool(path) and press(f'.river [data-path="{path}"]')(walk)
    return view(where)(walk)


@pytest.mark.parametrize(("name", "where", "kinds"), QUICK)
@pytest.mark.quick(2)
def test_a_change_in_the_page_shows_what_a_fresh_load_shows(browser: Browser, served: str, name: str, where: str, kinds: list[str]) -> None:
    with walking(browser, served) as walk:
        assert begin(walk, name, where)
        own = gestures(walk, name)
        assert route(walk, [(kind, own[kind]) for kind in kinds]) == []
        assert walk.compared == len(kinds)


@pytest.mark.parametrize("mutant", MUTANTS if FULL else list(MUTANTS)[::2])
@pytest.mark.quick(4)
def test_what_keeps_what_it_had_is_found(browser: Browser, served: str, mutant: str) -> None:
    script, name, where, kinds = MUTANTS[mutant]
    with walking(browser, served, script) as walk:
        assert begin(walk, name, where)
        own = gestures(walk, name)
        assert route(walk, [(kind, own[kind]) for kind in kinds]) != []


def test_the_quick_walk_has_every_specimen_view_and_change(browser: Browser, served: str) -> None:
    with walking(browser, served) as walk:
        walk.open(model="pellucid/capitals-deepseek", prompt=PROMPT)
        # those of no prompt have tests of their own: test_page_exhibits.py, test_page_learning.py, test_page_tokens.py
        views = {*walk.views()} - {"exhibits", "learning", "tokens"}
        assert {where for _, where, _ in QUICK} == views | {"tile"} and views < {*WHERES}
        assert {kind for *_, kinds in QUICK for kind in kinds} == set(gestures(walk, NEIGHBOUR))
    assert {name for name, *_ in QUICK} == set(specimens())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Save random models of three more families, with a specimen's tokenizer."""
    paths = []
    for hf in FAMILIES:
        path = tmp_path_factory.mktemp("family") / hf["model_type"]
        made = make({**hf, "vocab_size": 8192, "bos_token_id": 0, "eos_token_id": 0}, dtype=torch.float32)
        draw = torch.Generator().manual_seed(7)
        for name, p in made.module.named_parameters():
            p.data = torch.randn(p.shape, generator=draw) * 0.3 + (p.ndim == 1 and "norm" in name)
        made.save(path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(SPECIMENS / "capitals-llama" / name, path)
        paths.append(str(path))
    return paths


# Every view, and a tile of each kind; the quick walk's own test holds that the page has no other view.
WHERES = [*dict.fromkeys(where for _, where, _ in QUICK if where != "tile"), *(f"tile:{ending}" for ending in TILES)]


def walked(walk: Walk, name: str, where: str, prompts: list[str], edits: list[list[list[str]]]) -> list[str]:
    """Walk through one view, or a tile, with every kind of change. Returns all differences; skips a view that the model does not have."""
    if not begin(walk, name, where):
        pytest.skip(f"{name} has no {where}")
    own, blank = gestures(walk, name), "bert" in name
    steps: list[tuple[str, Gesture]] = [(f"step {k}", address(step=k)) for k in (() if blank else (1, 2, 0))]
    changes = [("edits", address(edits=json.dumps(e))) for e in edits] + [("no edits", address(edits=None))]
    rest = [(kind, own[kind]) for kind in ("head", "position", "cell", "sampling", "against", "theme", "language", "back")]
    differences = []
    for text in prompts:
        differences += route(walk, [(f"prompt {text}", prompt(f"{text} ___." if blank else text)), *steps])
    differences += route(walk, [*changes, *rest, ("theme", theme), ("language", language)])
    differences += route(walk, [("model", own["model"]), ("model back", model(name))])
    assert walk.compared > 5
    return differences


@pytest.mark.timeout(1800)  # up to a hundred loads
@pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 walks every specimen through every view")
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("name", specimens())
def test_every_view_of_every_specimen(browser: Browser, served: str, name: str, where: str) -> None:
    with walking(browser, served) as walk:
        assert walked(walk, name, where, PROMPTS, EDITS) == []


def test_the_folders_of_the_full_walk_open(folders: list[str]) -> None:
    assert [load(folder).family.name for folder in folders] == [hf["model_type"] for hf in FAMILIES]


@pytest.mark.timeout(1800)  # up to a hundred loads
@pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 walks three folders of other families")
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("which", range(len(FAMILIES)))
def test_every_view_of_other_families(browser: Browser, folders: list[str], which: int, where: str) -> None:
    with serve_from_thread(folders[which]) as at, walking(browser, at) as walk:
        assert walked(walk, folders[which], where, PROMPTS[:2], EDITS[:1]) == []


@pytest.mark.timeout(3600)  # hundreds of loads
def test_every_view_of_shapes_alone(browser: Browser) -> None:
    """A model of the catalogue; in the quick form the view of what learning is, which shows the most pictures without weights."""
    with serve_from_thread("gpt2-small") as at, walking(browser, at) as walk:
        walk.open()
        views = walk.views()
        assert "learning" in views
        for where in views if FULL else ["learning"]:
            assert view(where)(walk)
            assert route(walk, [("prompt", prompt("#5 6 7")), ("theme", theme), ("language", language), ("back", back)]) == []
