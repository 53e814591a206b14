"""The page that runs its model itself, in node, against Python: the same ids, the same tensors within float32, the same documents.

Eight of the fifty prompts by default; all of them with PELLUCID_FULL=1.
"""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from covering import FULL
from live_pages import NEAR, far, unlike, values
from pellucid.api.model import Model
from pellucid.documents.cell import terms_document
from pellucid.documents.lens import attribution_document, lens_document
from pellucid.documents.run import run_document, step_document
from pellucid.documents.run_map import map_document
from pellucid.errors import UseError
from pellucid.html.file import inert
from pellucid.html.live import live_page
from pellucid.html.live_tensors import switches
from pellucid.nn.transformer import Encoder, EncoderDecoder
from pellucid.runs.execute import full_record, run_prompt
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop
from pellucid.watching.change_text import parse_change

SPECIMENS = ("capitals", "capitals-llama", "reader", "capitals-deepseek", "capitals-prefix", "capitals-t5", "capitals-bert")
NEW = 4
COUNTRIES = (
    *("France", "Germany", "Italy", "Spain", "Japan", "China", "India", "Peru", "Chile", "Cuba", "Egypt", "Kenya", "Ghana", "Mali", "Chad"),
    *("Norway", "Sweden", "Finland", "Poland", "Greece", "Turkey", "Iran", "Iraq", "Oman", "Qatar"),
)
FACTS = [(a, b, c) for a in ("red", "blue", "green") for b in ("white", "black") for c in ("Alda", "Borin")]
ODD = [
    "法国的首都是",
    "A",
    " ",
    "Paris is the capital of",
    "é à ü ñ",
    "1 2 3 4 5",
    "don't we'll I'm",
    "line\nline\n\n  two",
    "<|endoftext|>",
]
PROMPTS = [
    *(f"The capital of {country} is" for country in COUNTRIES[:20]),
    *(f"{country}'s capital is the city of" for country in COUNTRIES[20:]),
    *(f"The key of Alda is {a}. The key of Borin is {b}. The key of {c} is" for a, b, c in FACTS),
    *(*ODD, "日本の首都は", "🙂 the", "  x  y ", "The The The"),
]
TEXTS = [
    *PROMPTS,
    "\u0085a \ufeffb\u00a0c",
    "a\t\tb\r\n\r\n c",
    "x" * 50,
    "१२३ ४५",
    "it's 'S 'LL they're",
    "\u3000宽 格",
    "½ ² Ⅷ",
    "e\u0301",
    "\x00\x07",
]
CONTROLS = [
    "a  [MASK] b [SEP] [CLS]x[PAD]",
    "[MASK][MASK]",
    "___ is ____.",
    "[MAS K] [mask] __",
    "x\u3000[MASK]\u3000y",
    "\ufeff[MASK]\u0085[MASK]",
]


@pytest.fixture(scope="module", params=SPECIMENS)
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    model = pellucid.load(f"pellucid/{request.param}")
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(live_page(model), encoding="utf-8")
    return model, path


def prompts_of(model: Model) -> list[str]:
    """Return the prompts, with a blank at the end where a model fills blanks."""
    return [f"{p} [MASK]." for p in PROMPTS] if isinstance(model.module, Encoder) else PROMPTS


def run_of(model: Model, prompt: str, new: int, **how: Any) -> Run:
    """Run a prompt in Python, in the form that the page has; an encoder's run has one step."""
    new = 1 if isinstance(model.module, Encoder) else new
    return run_prompt(LoadedModel.of(model), RunRequest(model.name, prompt, new=new, switches=switches(model), **how), Stop(), LIMITS)


@pytest.mark.quick(4)
def test_prompts_give_the_same_ids_and_tensors(page_file: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """Float64 is the judge of the numbers: T5's scores are large, and float32's own rounding in Python comes near the bound."""
    model, path = page_file
    exact = pellucid.load(model.name, dtype="float64")
    prompts = [p for p in prompts_of(model) if len(model.ids(p)) + NEW <= 64]
    assert len(prompts) == len(PROMPTS) == 50
    prompts = prompts if FULL else prompts[::7]
    requests = [{"prompt": p, "steps": NEW, "sampling": {}, "tensors": i < (6 if FULL else 2) or i > 40} for i, p in enumerate(prompts)]
    for prompt, answer in zip(prompts, driver(path, requests)["answers"], strict=True):
        run = run_of(model, prompt, NEW)
        assert answer["run"]["ids"] == run.trace.ids and answer["run"]["new"] == run.trace.new, prompt
        if "numbers" not in answer:
            continue
        judge = run_of(exact, prompt, NEW)
        theirs = [{s.path: s for s in judge.trace if s.step == k} for k in range(run.trace.steps)]
        for k, numbers in enumerate(answer["numbers"]):
            assert numbers.keys() == theirs[k].keys()
            worst = max((far(values(x, list(theirs[k][p].shape)), theirs[k][p].value), p) for p, x in numbers.items())
            assert worst[0] <= NEAR, (prompt, k, worst)


LEFT = (".terms", ".error", ".labels", ".sampling.bias", ".switches")


@pytest.mark.quick(4)
def test_documents_are_the_servers(page_file: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """Every field of a run, its steps, its map and its lens, but for the run's id, what a tensor's cells are made of, and errors."""
    model, path = page_file
    prompt, forced = prompts_of(model)[0], {} if isinstance(model.module, Encoder) else {1: 5}
    request = {"prompt": prompt, "steps": 3, "sampling": {}, "forced": {str(k): id for k, id in forced.items()}, "tensors": True}
    answer = driver(path, [request])["answers"][0]
    run = run_of(model, prompt, 3, forced=forced)
    row = run.trace.blanks[0] if run.trace.blanks else -1

    def same(ours: dict[str, Any], theirs: Any) -> list[str]:
        theirs = json.loads(json.dumps(theirs)) | {"run": ours["run"]} if "run" in ours else theirs
        left_out = (".terms", ".error", ".labels", ".sampling.bias", ".switches")
        unequal = [d for d in unlike(ours, theirs) if not d.split(":")[0].endswith(left_out)]
        return [d for d in unequal if not d.endswith(".source: recomputed executed")]  # scores, which a page has from its script

    assert same(answer["run"], run_document(run)) == []
    assert len(answer["steps"]) == run.trace.steps
    for k, step in enumerate(answer["steps"]):
        assert same({"tensors": step["tensors"]}, {"tensors": step_document(run, k)["tensors"]}) == []
        far_from = [d for d in same(step["map"], map_document(run, k, Stop())) if not tied(run, step["map"], d)]
        assert far_from == []
        theirs = lens_document(run, k, row, None, 5, Stop())["layers"]
        assert same({"lens": step["lens"]}, {"lens": theirs}) == []
        assert same(step["why"], attribution_document(run, k, row, None, Stop())) == []
        for t in step["tensors"]:
            assert (t["error"] is None) == (t["source"] == "executed") and (t["error"] or 0) < 1e-4


def tied(run: Run, drawn: dict[str, Any], difference: str) -> bool:
    """True if a difference is the head of an edge whose largest share two heads have in Python, up to float32's rounding."""
    match = re.fullmatch(r"\.stacks\[(\d+)\]\.blocks\[(\d+)\]\.(edges|crossed)\[(\d+)\]\.head: (\d+) (\d+)", difference)
    if match is None:
        return False
    stack, block, edge, head = int(match[1]), int(match[2]), int(match[4]), int(match[5])
    part = drawn["stacks"][stack]["blocks"][block]
    at = part[match[3]][edge]
    path = f"{part['path']}.{'attn' if match[3] == 'edges' else 'cross'}.pattern"
    patterns = torch.cat([s.value[0] for s in run.trace.all(path)], 1) if match[3] == "crossed" else run.trace.all(path)[0].value[0]
    shares = patterns[:, at["query"], at["key"]]
    return float(shares.max() - shares[head]) <= NEAR


@pytest.mark.quick(4)
def test_cells_are_taken_apart_as_pythons(page_file: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """Of every tensor that has terms a cell in the middle and one at the end, in the prompt's step and in the next."""
    model, path = page_file
    prompt = prompts_of(model)[0]
    run = run_of(model, prompt, 2)
    requests: list[tuple[int, tuple[int, ...]]] = []
    for n, s in enumerate(run.trace.seen):
        requests += [(n, tuple(size // 2 for size in s.shape)), (n, tuple(size - 1 for size in s.shape))]
    answer = driver(path, [{"prompt": prompt, "steps": 2, "sampling": {}, "tensors": True, "cells": requests}])["answers"][0]
    documents = [t for step in answer["steps"] for t in step["tensors"]]
    compared = set()
    for (n, at), ours in zip(requests, answer["terms"], strict=True):
        if documents[n]["terms"]:
            theirs = terms_document(run, full_record(run, n, Stop(), terms=True), ",".join(map(str, at)), LIMITS)
            assert unlike(ours, {name: theirs[name] for name in ours}) == [], (documents[n]["path"], at)
            compared.add(documents[n]["op"])
    assert {t["op"] for t in documents} == compared


Edits = list[tuple[str, str, str, str]]
EDITS: list[Edits] = [
    [("layers.1.attn.z", ":,:,1,:", "to", "0")],
    [("layers.0.out", ":,2,:", "times", "1.5"), ("layers.1.ffn", "", "to", "0.25")],
    [("layers.1.attn.v", "T=1:3, G=0", "to", "2"), ("layers.0.attn_norm", "T=-1", "times", "-1")],
]
LATENT: Edits = [("layers.1.attn.latent", "T=1:3", "to", "2"), ("layers.0.attn_norm", "T=-1", "times", "-1")]
CROSSED: list[Edits] = [
    [("decoder.layers.1.cross.z", ":,:,1,:", "to", "0")],
    [("encoder.layers.0.out", ":,2,:", "times", "1.5"), ("decoder.layers.1.ffn", "", "to", "0.25")],
    [("encoder.layers.1.attn.v", "T=1:3, G=0", "to", "2"), ("decoder.layers.1.cross.k", "S=-1", "times", "-1")],
]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.quick(6)
def test_changes_are_pythons(page_file: tuple[Model, Path], driver: Callable[..., Any], which: int) -> None:
    model, path = page_file
    edits = (CROSSED if isinstance(model.module, EncoderDecoder) else [*EDITS[:2], LATENT] if switches(model) else EDITS)[which]
    texts = [f"{path}{f'[{at}]' if at else ''} {'=' if how == 'to' else '*='} {value}" for path, at, how, value in edits]
    prompt = prompts_of(model)[0]
    run = run_of(model, prompt, 1, changes=tuple(map(parse_change, texts)))
    own = [dict(zip(("path", "at", "how", "value"), edit, strict=True)) for edit in edits]
    answer = driver(path, [{"prompt": prompt, "steps": 1, "sampling": {}, "tensors": True, "edits": own}])["answers"][0]
    assert answer["run"]["new"] == run.trace.new and answer["run"]["edited"] == [edit[0] for edit in edits]
    worst = max((far(values(answer["numbers"][0][s.path], list(s.shape)), s.value), s.path) for s in run.trace)
    assert worst[0] <= NEAR, worst
    sources = {t["path"]: t["source"] for t in answer["steps"][0]["tensors"]}
    executed = {s.path: s.source for s in run.trace}
    kernels = {path for path, source in executed.items() if source == "executed" and path.endswith((".scores", ".pattern"))}
    assert sources == executed | {path: sources[path] for path in kernels}  # which a page has from its script
    assert {sources[path] for path in kernels} <= {"executed", "recomputed"}


@pytest.mark.quick(4)
def test_a_change_that_leaves_no_number_is_refused(page_file: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    """The first NaN is at the cell that Python names. Its mutant: the same change with a number that stays finite."""
    model, path = page_file
    prompt, side = prompts_of(model)[0], "decoder." if isinstance(model.module, EncoderDecoder) else ""
    last = f"{side}layers.{len(model.config.layers) - 1}.out"
    with pytest.raises(UseError) as refused:
        run_of(model, prompt, 1, changes=(parse_change(f"{last} = -inf"),))
    edits = [[{"path": last, "at": "", "how": "to", "value": value}] for value in ("-inf", "0")]
    broken, sound = driver(path, [{"prompt": prompt, "steps": 1, "sampling": {}, "edits": own} for own in edits])["answers"]
    assert refused.value.key == "page.change.nan"
    assert broken["broken"] == [refused.value.values["path"], str(refused.value.values["at"]), refused.value.values["step"]]
    assert "broken" not in sound


@pytest.mark.quick(4)
def test_drawn_tokens_are_pythons(page_file: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    model, path = page_file
    settings = [{"temperature": 1.0, "seed": s} for s in range(4)] + [
        {"temperature": 1.5, "top_k": 40, "seed": 7},
        {"temperature": 0.8, "top_p": 0.9, "seed": 2},
    ]
    if isinstance(model.module, Encoder):
        pytest.skip("an encoder fills its blanks with the likeliest tokens")
    requests = [{"prompt": PROMPTS[0], "steps": 6, "sampling": s, "tensors": False} for s in settings]
    for sampling, answer in zip(settings, driver(path, requests)["answers"], strict=True):
        run = run_of(model, PROMPTS[0], 6, sampling=dict(sampling))
        assert answer["run"]["new"] == run.trace.new, sampling


@pytest.mark.quick(4)
def test_texts_and_pieces_are_pythons(page_file: tuple[Model, Path], driver: Callable[..., Any]) -> None:
    from pellucid.runs.answers import piece_of, visible

    model, path = page_file
    texts = [*TEXTS, *CONTROLS] if isinstance(model.module, Encoder) else TEXTS
    documents = driver(path, texts=texts)
    assert documents["ids"] == [model.ids(t) for t in texts]
    assert documents["shown"] == [visible(piece_of(model.tokenizer, i)) for i in range(model.config.vocab)]


@pytest.mark.quick(4)
def test_a_changed_weight_is_seen(page_file: tuple[Model, Path], driver: Callable[..., Any], tmp_path: Path) -> None:
    """The comparison can fail: one weight's sign in the file, and tensors are far from Python's."""
    model, path = page_file
    stack = "decoder." if isinstance(model.module, EncoderDecoder) else ""
    text = path.read_text(encoding="utf-8")
    at = text.index('id="weights">') + len('id="weights">')
    end = text.index("<", at)
    file = bytearray(base64.b64decode(text[at:end]))
    head = int.from_bytes(file[:8], "little")
    first = json.loads(file[8 : 8 + head])[f"{stack}layers.0.attn.o.weight"]["data_offsets"][0]
    for i in range(64):
        file[8 + head + first + 2 * i + 1] ^= 0x80
    changed = tmp_path / "changed.html"
    changed.write_text(text[:at] + base64.b64encode(file).decode() + text[end:], encoding="utf-8")
    requests = [{"prompt": PROMPTS[0], "steps": 1, "sampling": {}, "tensors": True}]
    ours, theirs = (driver(p, requests)["answers"][0]["numbers"][0][f"{stack}layers.0.attn"] for p in (path, changed))
    shape = [1 if stack else len(model.ids(PROMPTS[0])), model.config.width]
    assert far(values(ours, shape), values(theirs, shape)) > 100 * NEAR


def unshared(x: dict[str, Any]) -> None:
    for call in x["plan"]["calls"]:
        if call["op"] == "shares":
            call["words"]["normalised"] = 0


WRONG: dict[str, Callable[[dict[str, Any]], None]] = {
    "capitals-deepseek": unshared,  # the chosen experts' shares are not divided by their sum
    "capitals-prefix": lambda x: x["plan"].update(together=False),  # no row sees a later one
    "capitals-bert": lambda x: x["plan"].update(together=False),
    "capitals-t5": lambda x: x["plan"]["memory"].reverse(),  # a block reads another block's keys and values
}


@pytest.mark.quick(4)
def test_a_changed_plan_is_seen(page_file: tuple[Model, Path], driver: Callable[..., Any], tmp_path: Path) -> None:
    """The comparison can fail: what a plan has beside a dense decoder's, done wrong, moves the logits of some prompt far."""
    model, path = page_file
    wrong = WRONG.get(model.name.removeprefix("pellucid/"))
    if wrong is None:
        pytest.skip("a dense decoder's plan")
    text = path.read_text(encoding="utf-8")
    match = re.search(r'id="live">([^<]*)<', text)
    assert match is not None
    document = json.loads(match[1])
    wrong(document)
    changed = tmp_path / "changed.html"
    changed.write_text(text[: match.start(1)] + inert(document) + text[match.end(1) :], encoding="utf-8")
    requests = [{"prompt": p, "steps": 1, "sampling": {}, "tensors": True} for p in prompts_of(model)[:20:4]]
    ours, theirs = ([a["numbers"][0]["logits"] for a in driver(p, requests)["answers"]] for p in (path, changed))
    assert max(far(values(a, [-1]), values(b, [-1])) for a, b in zip(ours, theirs, strict=True)) > 100 * NEAR
