"""Every exhibit: its claims hold, fail when its switches are ignored, and its texts and numbers are those of its file and its runs."""

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from covering import FULL
from pellucid.analysis.small_training import trained_on
from pellucid.api.fresh_weights import redrawn
from pellucid.bench.machine_limits import threaded
from pellucid.documents.exhibit import ExhibitDocument, exhibit_document, exhibit_list
from pellucid.documents.number import number
from pellucid.errors import UseError
from pellucid.exhibits import CHAPTERS, find, names
from pellucid.exhibits.exhibit import Claim, ExhibitResult, Experiment, Opened, run_exhibit
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel
from pellucid.messages import phrases, speaking
from pellucid.terminal.exhibit_lines import exhibit_lines

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "pellucid" / "exhibits"
PARTS = {"__init__", "exhibit", "panel"}
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
NAMES = list(names())
open_single, open_double = Opened(), Opened("float64")


@cache
def ran(name: str) -> ExhibitResult:
    """Return an exhibit that was run on its specimen; tests share it. In the quick form one that trains takes its fewest steps."""
    return run_exhibit(find(name), settings={} if FULL else few_steps(name), open_model=open_single)


def few_steps(name: str) -> dict[str, Any]:
    """Return the setting of fewest training steps, if an exhibit has it."""
    return {c.name: min(c.options) for c in find(name).controls if c.name == "steps"}


def test_every_file_is_in_a_chapter() -> None:
    assert sorted(NAMES) == sorted({p.stem for p in FOLDER.glob("*.py")} - PARTS)
    assert len(set(NAMES)) == len(NAMES)
    assert [find(name).name for name in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(7)
def test_claims_hold(name: str) -> None:
    result = ran(name)
    assert result.claims and result.panels
    assert [c.key for c in result.claims if not c.holds] == []
    assert len({c.key for c in result.claims}) == len(result.claims)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(15)
def test_a_claim_fails_without_the_switch(name: str) -> None:
    result = run_exhibit(find(name), None, {} if FULL else few_steps(name), open_single, enabled=False)
    assert not result.holds


COUNTED = {  # claims about answers whose count alone does not tell a switch from none: 194 of 194 are right either way
    "activations": {"answers", "bias", "gated"},
    "mask": {"answers"},
    "order": {"answers"},
    "residual": {"each"},
    "scale": {"answers"},
    "turns": {"base"},
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.quick(4)
def test_answers_tell_a_switch_from_none(name: str) -> None:
    result = run_exhibit(find(name), open_model=open_single, enabled=False)
    assert {c.key for c in result.claims if not c.holds} >= COUNTED[name]


@pytest.mark.parametrize("name", NAMES if FULL else NAMES[::3])
@pytest.mark.quick(10)
def test_claims_hold_in_float64(name: str) -> None:
    result = run_exhibit(find(name), open_model=open_double)
    assert [c.key for c in result.claims if not c.holds] == []


OTHERS = ["pellucid/capitals-llama", "pellucid/capitals-deepseek", "pellucid/reader"]
SPLIT = {("analogy", "pellucid/reader"), ("distance", OTHERS[0]), ("distance", OTHERS[1])}  # a word of it is several tokens there


# In the quick form each exhibit runs on one other specimen, by turns, and on those that refuse its words.
ON_OTHERS = [(name, model) for name in NAMES for model in OTHERS]
ON_ONE = [(name, model) for i, (name, model) in enumerate(ON_OTHERS) if i % 3 == i // 3 % 3 or (name, model) in SPLIT]


@pytest.mark.parametrize(("name", "model"), ON_OTHERS if FULL else ON_ONE)
@pytest.mark.quick(17)
def test_it_runs_on_every_specimen_that_fits(name: str, model: str) -> None:
    """It is refused by `fits`, or for its words; else every claim that is made about it holds."""
    shown, other = find(name), open_single(model)
    if shown.own or not shown.fits(other.config) or (name, model) in SPLIT:
        with pytest.raises(UseError) as refused:
            run_exhibit(shown, other, open_model=open_single)
        key = "attribution.token" if (name, model) in SPLIT else "exhibit.own" if shown.own else "exhibit.model"
        assert refused.value.key == key
        return
    result = run_exhibit(shown, other, {} if FULL else few_steps(name), open_model=open_single)
    assert [c.key for c in result.claims if not c.holds] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(6)
def test_documents_say_the_numbers(name: str, lang: str) -> None:
    """Each number of a claim stands in its sentence as every number is written, and the terminal shows sentence and panels."""
    with speaking(lang):
        document: ExhibitDocument = json.loads(json.dumps(exhibit_document(ran(name)), allow_nan=False))
        text = "\n".join(line.plain for line in exhibit_lines(document, 4000, False))
    for claim, own in zip(document["claims"], ran(name).claims, strict=True):
        shown = [v if isinstance(v, str) else f"{v:,}" if isinstance(v, int) else number(v) for v in own.numbers.values()]
        assert all(v in claim["text"] for v in shown), claim
        assert claim["text"] in text
    assert all(panel["title"] in text for panel in document["panels"])
    assert document["head"]["said"] in text and document["head"]["true"] in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(5)
def test_python_makes_the_runs_again(name: str) -> None:
    """The lines that an exhibit gives as Python run, and there is a line for each of its runs."""
    document = exhibit_document(ran(name))
    scope: dict[str, object] = {}
    exec("\n".join(document["python"]), scope)
    distinct = list(dict.fromkeys(ran(name).runs))
    traces = [scope[f"run_{n}"] for n in range(len(distinct))]
    assert all(isinstance(t, pellucid.Trace) and t.prompt == r.prompt for t, r in zip(traces, distinct, strict=True))
    runs = [traces[distinct.index(r)] for r in ran(name).runs]
    assert misplaced(ran(name).panels, runs) == []


def misplaced(panels: Sequence[Panel], runs: Sequence[Any]) -> list[str]:
    """Return where a table or a matrix points to a number of a run that is not its own, or to a tensor that the run lacks."""
    cells: list[tuple[str, tuple[int, ...], int, Any]] = []
    for p in panels:
        if isinstance(p, TablePanel):
            cells += [(one.path, tuple(one.cell), one.run, p.rows[i][j]) for (i, j), one in p.places.items()]
        if isinstance(p, MatrixPanel) and p.cell:
            for i, row in enumerate(p.values):
                at = ({"row": i, "column": j} for j in range(len(row)))
                cells += [(p.path, tuple(a.get(n, n) for n in p.cell), p.run, v) for a, v in zip(at, row, strict=True) if v is not None]
    out = []
    for path, cell, run, shown in cells:
        tensor = runs[run].all(path)[0].value if path in runs[run] else None
        known = tensor is not None and (not cell or len(cell) == tensor.ndim)
        if not known or (cell and abs(float(tensor[cell]) - shown) > 1e-5 * max(1, abs(shown))):
            out.append(f"{path}{list(cell)} of run {run}: {shown}")
    return out


def test_a_misplaced_number_is_seen() -> None:
    """The mutants: a cell of another head, another run, and a tensor that is not there."""
    model = open_single("pellucid/capitals")
    run, other = pellucid.trace(model, "The capital of France is"), pellucid.trace(model, "The capital of Japan is")
    panel = next(p for p in ran("patterns").panels if isinstance(p, MatrixPanel) and p.cell)
    assert misplaced([panel], [run]) == [] and misplaced([replace(panel, cell=(0, 1, "row", "column"))], [run])
    assert misplaced([panel], [other]) and misplaced([replace(panel, path="layers.9.attn.pattern")], [run])
    table = next(p for p in ran("equation").panels if isinstance(p, TablePanel) and p.tinted)
    assert misplaced([table], [run]) == [] and misplaced([table], [other])


def test_a_small_model_runs_on_one_thread() -> None:
    """A specimen's products are too small for two threads, which wait for each other where the machine is busy."""
    counts: list[int] = []

    def show(experiment: Experiment) -> Iterator[Panel | Claim]:
        counts.append(torch.get_num_threads())
        yield from ()

    with threaded(2):
        run_exhibit(replace(find("scale"), show=show), open_model=open_single)
        assert counts == [1] and torch.get_num_threads() == 2


def texts(name: str, source: str) -> Iterator[str]:
    """Yield the keys of messages that an exhibit's file needs."""
    yield from (f"exhibit.{name}.{key}" for key in ("title", "said", "true"))
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        own = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"exhibit.{name}.")
        if own and id(node) not in parts:
            yield node.value
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "e.claim":
            assert isinstance(node.args[0], ast.Constant)
            yield f"exhibit.{name}.claim.{node.args[0].value}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Control":
            assert isinstance(node.args[0], ast.Constant)
            yield f"exhibit.{name}.control.{node.args[0].value}"


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_those_of_the_file(name: str) -> None:
    known = {key for key in phrases("en") if key.startswith(f"exhibit.{name}.")}
    assert known == set(texts(name, (FOLDER / f"{name}.py").read_text(encoding="utf-8")))


def test_no_text_is_of_another_exhibit() -> None:
    own = {f"exhibit.{name}." for name in NAMES} | {f"exhibit.chapter.{chapter}" for chapter in CHAPTERS}
    three = [key for key in phrases("en") if key.startswith("exhibit.") and key.count(".") > 1 and not key.startswith("exhibit.help.")]
    assert [key for key in three if not key.startswith(tuple(own))] == []


def computed(source: str) -> list[str]:
    """Return the arithmetic and the tensor code of an exhibit's file."""
    arithmetic = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ARITHMETIC):
            arithmetic.append(ast.unparse(node))
        if isinstance(node, ast.Import | ast.ImportFrom) and "torch" in ast.unparse(node):
            arithmetic.append(ast.unparse(node))
    return arithmetic


@pytest.mark.parametrize("name", NAMES)
def test_no_arithmetic(name: str) -> None:
    assert computed((FOLDER / f"{name}.py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("source", ["x = a + b", "import torch", "from torch import nn", "x = a @ b", "n += 1", "f(2 * x)"])
def test_arithmetic_is_seen(source: str) -> None:
    assert computed(source)


def test_the_list_names_all() -> None:
    document = exhibit_list()
    assert [h["name"] for h in document["exhibits"]] == NAMES and list(document["chapters"]) == list(CHAPTERS)


def constant(source: str) -> list[str]:
    """Return the claims of an exhibit's file that hold whatever was run."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "e.claim"]
    return [ast.unparse(node) for node in calls if isinstance(node.args[1], ast.Constant)]


def test_no_claim_holds_by_itself() -> None:
    assert [(name, wrong) for name in NAMES if (wrong := constant((FOLDER / f"{name}.py").read_text(encoding="utf-8")))] == []
    assert constant('yield e.claim("unable", True, right=3)') and not constant('yield e.claim("able", right > 2, right=right)')


def all_right(made: Any) -> Any:
    """Return answers as if each were right."""
    return replace(made, right=made.of)


def worse(two: Any) -> Any:
    """Return a measurement of a module that guesses worse than its model."""
    return lambda own, right: replace(m := two.measured(own, right), second=m.following + 1)


UNABLE: dict[
    str, tuple[str, str, Any]
] = {  # what is said of a model that cannot do it: {exhibit: the model, what is replaced, and by what}
    "acting": (OTHERS[0], "acted", lambda own: lambda *given: (all_right((ways := own(*given))[0]), ways[1])),
    "ladder": (OTHERS[0], "asking", lambda own: lambda *given: all_right(own(*given))),
    "formats": (
        OTHERS[0],
        "TASKS",
        lambda own: {key: lambda *given, task=task: replace(task(*given), right=40) for key, task in own.items()},
    ),
    "second": (OTHERS[2], "TwoAhead", lambda own: type("Worse", (own,), {"measured": worse(own)})),
    "conversation": (OTHERS[0], "run_turns", lambda own: lambda model, chat, way: own(model, chat, "none")),
}


@pytest.mark.parametrize("name", UNABLE)
@pytest.mark.quick(4)
def test_what_a_model_cannot_do_is_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence fails on a model that can, which is put in its place: its answers are right, its module guesses worse than it."""
    model, part, put = UNABLE[name]
    file = import_module(f"pellucid.exhibits.{name}")
    monkeypatch.setattr(file, part, put(getattr(file, part)))
    result = run_exhibit(find(name), open_single(model), open_model=open_single)
    assert "unable" in [c.key for c in result.claims if not c.holds]


@pytest.mark.parametrize("name", ["rank", "residual", "heads", "patterns", "kinds"])
@pytest.mark.quick(5)
def test_a_model_that_knows_nothing_is_said_to(name: str) -> None:
    """No claim fails on a model with fresh weights: what a change takes from its answers cannot be seen."""
    model = open_single(OTHERS[0])
    result = run_exhibit(find(name), redrawn(model, 1), settings=few_steps(name), open_model=open_single)
    assert result.holds and "unable" in [c.key for c in result.claims]
    bare = redrawn(model, 1)
    bare.files = {}
    with pytest.raises(UseError, match=r"tokenizer\.json"):
        trained_on(bare, 1)


def test_refusals() -> None:
    with pytest.raises(UseError, match="near: norms; allowed: pieces, "):
        find("norm")
    with pytest.raises(UseError, match="prompt"):
        run_exhibit(find("norms"), open_model=open_single, settings={"words": 1})
    with pytest.raises(UseError, match="capitals"):
        run_exhibit(find("norms"), open_single("pellucid/capitals-t5"))


OF_THE_MODEL = {"model", "quality", "trace", "variant", "exact"}  # what an Experiment has of the model that it is shown on


def reads_the_model(source: str) -> bool:
    """True if an exhibit's file takes anything of the model that it is given."""
    own = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr in OF_THE_MODEL)
    return any(isinstance(node.value, ast.Name) and node.value.id == "e" for node in own)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_shown_or_refused(name: str) -> None:
    """An exhibit that reads nothing of a model names none, and refuses one."""
    shown = find(name)
    assert reads_the_model((FOLDER / f"{name}.py").read_text(encoding="utf-8")) != shown.own
    head = next(h for h in exhibit_list()["exhibits"] if h["name"] == name)
    assert head["model"] == ("" if shown.own else shown.model)
    if shown.own:
        with pytest.raises(UseError, match=rf"{name}.*capitals-t5"):
            run_exhibit(shown, open_single("pellucid/capitals-t5"))


def test_a_file_that_reads_the_model_is_seen() -> None:
    """The mutants of the law above."""
    assert reads_the_model("def show(e): yield e.trace(e.text('prompt'))") and reads_the_model("show = lambda e: f(e.model.config)")
    assert not reads_the_model("def show(e): yield run.model, e.number('steps')")


def test_the_head_says_model_and_dtype() -> None:
    """In the terminal, in the document and in Python: the same."""
    for result, own in ((ran("scale"), ("pellucid/capitals", "float32")), (ran("sizes"), ("", ""))):
        document = exhibit_document(result)
        assert (document["model"], document["dtype"]) == (result.model, result.dtype) == own
        first = exhibit_lines(document, 200, False)[0].plain
        assert first.strip() == "  ·  ".join(filter(None, (document["head"]["title"], *own)))
    double = run_exhibit(find("scale"), open_model=open_double)
    assert exhibit_document(double)["dtype"] == "float64" and "on pellucid/capitals in float64" in repr(double)


def test_exhibits_leave_the_model_alone() -> None:
    """An exhibit changes no weight of the model that it is shown on."""
    model = pellucid.load("pellucid/capitals", dtype="float32")
    before = {name: p.clone() for name, p in model.module.named_parameters()}
    run_exhibit(find("residual"), model, open_model=open_single)
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())
