"""`explain` prints what the Python API gives, for every family, at every width, in both languages."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len

import pellucid
from documented import accept
from pellucid.api.model import Model
from pellucid.axes import letters
from pellucid.commands import main
from pellucid.documents import number
from pellucid.documents.cell import cell
from pellucid.documents.formula import formula
from pellucid.documents.run import run_document
from pellucid.documents.run_view import RunView, explain, folded
from pellucid.families import family
from pellucid.ops import native
from pellucid.runs.answers import visible
from pellucid.terminal import run_lines, sparkline
from pellucid.terminal.cell_lines import account
from pellucid.terminal.run_lines import Display
from pellucid.tokenizer.pieces import Piece
from tiny import FAMILIES, tiny

PROMPT = "The capital of France is"
CHINESE = re.compile(r"[\u3400-\u9fff]")


@pytest.fixture(scope="module")
def explained(specimen: Model) -> RunView:
    return explain(pellucid.load(specimen.name, dtype="float32"), PROMPT, 2, terms=True)


def random_model(name: str) -> Model:
    """Return a tiny random model of a family, without a tokenizer."""
    module = tiny(name, torch.float32)
    if module.config.encoder is not None:
        module.config = replace(module.config, starts=0)
    return Model(name, module, family(name), {}, None)


def plain(view: RunView, **how: Any) -> str:
    return "\n".join(line.plain for line in run_lines.story(view, Display(**how)))


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return a command's exit code, stdout and stderr."""
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def unlike(document: dict[str, Any], model: Model, steps: int) -> list[str]:
    """Return where a document of `explain --json` differs from the public API."""
    run = pellucid.trace(model, document["prompt"], steps)
    wrong = [] if document["new"] == run.new and document["next"]["id"] == run.new[0] else ["new"]
    wrong += [] if [t["id"] for t in document["tokens"]] == model.tokenizer.encode(document["prompt"]) else ["tokens"]
    for tensor, seen in zip(document["tensors"], run, strict=True):
        value = seen.value.double()
        expected = {"path": seen.path, "dims": seen.dims, "shape": list(seen.shape), "dtype": str(seen.dtype)[6:]}
        expected |= {"min": value.min().item(), "mean": value.mean().item(), "max": value.max().item(), "source": seen.source}
        expected |= {"weights": list(seen.weights), "inputs": list(seen.inputs), "error": seen.error}
        wrong += [f"{seen.path}.{key}" for key, x in expected.items() if tensor[key] != x]
    shares = run.last_logits(0).float().softmax(-1)
    for c in document["candidates"]:
        wrong += [] if c["probability"] == shares[c["id"]].item() and c["logit"] == run.last_logits(0)[c["id"]].item() else ["candidates"]
    wrong += [] if [c["logit"] for c in document["candidates"]] == run.last_logits(0).sort(descending=True)[0][:5].tolist() else ["order"]
    return wrong


def test_json_is_the_python_api(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("explain", str(folder), PROMPT, "--json", "--steps", "2", capsys=capsys)
    document = json.loads(out)
    accept(document, "explain")
    model = pellucid.load(folder, dtype="float32")
    assert code == 0
    assert unlike(document, model, 2) == []
    document["tensors"][7]["mean"] += 1e-7
    document["candidates"].reverse()
    assert {wrong.rpartition(".")[2] for wrong in unlike(document, model, 2)} == {"mean", "order"}


def test_the_default_model_is_the_specimen(explained: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("explain", PROMPT, capsys=capsys)
    assert code == 0
    assert out.startswith("pellucid/capitals")
    assert "·Paris" in out


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("colour", [False, True])
def test_lines_fit_and_numbers_are_the_values(explained: RunView, width: int, colour: bool) -> None:
    text = plain(explained, width=width, colour=colour)
    assert max(map(cell_len, text.splitlines())) <= width
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    for line in explained.steps[0].tensors:
        if line.block in ("", "layers.0") and line.seen.step == 0:
            row = next(r for r in text.splitlines() if re.match(rf"\s+{re.escape(line.name)} ", r))
            printed = row.split()[-3:]
            value = line.seen.value
            assert printed == [number.number(float(x)) for x in (value.min(), value.double().mean(), value.max())], line.name
            for axis, n in zip(line.seen.dims.split(), line.seen.shape, strict=True):
                assert axis == "B" or width < 80 or f"{axis} {n}" in row


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.quick(4)
def test_every_family(name: str) -> None:
    """Unfolded, every parameter is named, letters are explained and formulas are written; no line is too long."""
    model = random_model(name)
    view = explain(model, [5, 3, 60, 7], 2)
    text = plain(view, width=160, everything=True)
    shown = set(re.findall(r"^ {6}(\S+)  ", text, re.M))
    assert {path for path, _ in model.module.named_parameters()} <= shown
    for line in view.steps[0].tensors:
        assert line.made and "(past" not in line.made
        assert not re.search(r"^\w+ \w+\(", line.made), line.made
        assert all(re.search(rf"^ .*\b{x}  \S", text, re.M) for x in letters(line.seen.dims) if x != "B")
    for width in (80, 132):
        folded = plain(view, width=width)
        assert max(map(cell_len, folded.splitlines())) <= width
        assert folded.count("\n") < text.count("\n")
    accept(run_document(view.run, view.trace.steps), "explain")
    assert [m.cached for m in view.steps] == [0, 1 if model.config.encoder else 4]


def test_a_line_without_its_weight_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above names only the first weight of a line."""
    model = random_model("gpt2")
    view = explain(model, [5, 3], 1)
    sources = run_lines.sources
    monkeypatch.setattr(run_lines, "sources", lambda one: sources(one)[:1])
    shown = set(re.findall(r"^ {6}(\S+)  ", plain(view, width=160, everything=True), re.M))
    assert not {path for path, _ in model.module.named_parameters()} <= shown


@pytest.mark.parametrize("name", FAMILIES)
def test_cells_add_up(name: str) -> None:
    """For a random cell of every tensor the printed summands add up to the printed number."""
    view = explain(random_model(name), [5, 3, 60, 7], 1, terms=True)
    draw = torch.Generator().manual_seed(1)
    for line in view.steps[0].tensors:
        at = [int(torch.randint(n, (), generator=draw)) for n in line.seen.shape]
        c = cell(view.trace, line.seen.path, ",".join(map(str, at)))
        assert c.value == float(line.seen.value[tuple(at)])
        assert abs(c.total - c.value) <= 1e-4 * max(1.0, abs(c.value), *(abs(s) for _, s in c.rows)), line.seen.path
        assert abs(sum(s for _, s in c.rows) - c.total) < 1e-9 * max(1.0, *(abs(s) for _, s in c.rows))
        text = "\n".join(t.plain for t in account(c, {s.path: s.dims for s in view.trace}, 100))
        assert f"{c.value:.9g}" in text and f"{c.total:.9g}" in text
        assert max(map(cell_len, text.splitlines())) <= 100


def test_a_cell_in_the_terminal(explained: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell may omit the batch and count from the end, and the line for the middle gives the sum of its summands."""
    path = "layers.0.attn.scores"
    code, out, _ = run("explain", PROMPT, "--cell", path, "1,-1,3", capsys=capsys)
    c = cell(explained.trace, path, "0,1,4,3")
    assert code == 0
    assert f"{path}[0, 1, 4, 3]" in out
    assert out.splitlines()[0].endswith("B 0, H 1, T 4, S 3")
    hidden = [s for _, s in c.rows[6:-6]]
    assert f"{len(hidden)} more, which add up to {number.number(sum(hidden))}" in out
    code, out, _ = run("explain", PROMPT, "--cell", path, "1,-1,3", "--json", capsys=capsys)
    document = json.loads(out)
    accept(document, "explain")
    assert document["cell"]["index"] == [0, 1, 4, 3]
    assert sum(document["cell"]["summands"]) == pytest.approx(document["cell"]["total"], abs=1e-9)


def test_the_parts_of_a_cell_in_the_terminal(explained: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    """--parts names the largest parts under the cell, and in the document; without a cell it is refused."""
    where = ("--cell", "layers.1.attn.q", "4,1,7", "--parts")
    code, out, _ = run("explain", PROMPT, *where, "--json", capsys=capsys)
    document = json.loads(out)
    accept(document, "explain")
    made = document["parts"]
    assert code == 0 and made["total"] == pytest.approx(document["cell"]["value"], abs=1e-4) and made["constant"] == ["norm"]
    code, out, _ = run("explain", PROMPT, *where, capsys=capsys)
    assert all(part["text"] in out and number.number(part["value"]) in out for part in made["parts"])
    code, _, stderr = run("explain", PROMPT, "--parts", capsys=capsys)
    assert code != 0 and "--cell" in stderr


@pytest.mark.parametrize("width", [80, 160])
def test_chinese(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With --lang zh all words are Chinese and lines of wide characters fit; the next command is English again."""
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = run("explain", "法国的首都是", "--lang", "zh", "--head", "1", capsys=capsys)
    assert code == 0
    assert len(CHINESE.findall(out)) > 100
    assert not re.search(r"\b(the|of|and|comes)\b", out)
    assert max(map(cell_len, out.splitlines())) <= width
    table = [line for line in out.splitlines() if re.match(r"\s+(positions|embed|attn|mid|ffn|out|norm|logits)\b", line)]
    assert len({cell_len(line) for line in table}) == 1
    _, out, _ = run("explain", "The", "--lang", "en", capsys=capsys)
    assert not CHINESE.search(out.split("the likeliest")[0])


def test_folding(explained: RunView) -> None:
    """A block like an earlier one is one line, a requested layer is unfolded, and a head shows its own rows and pattern."""
    assert folded(explained) == {"layers.1", "layers.2", "layers.3"}
    assert folded(explained, [2]) == {"layers.0", "layers.1", "layers.3"}
    assert folded(explained, everything=True) == set()
    text = plain(explained, width=120, layers=(2,), head=1)
    pattern = explained.trace.all("layers.2.attn.pattern")[0].value[0, 1]
    assert "layers.2.attn.pattern" in text
    last = [row for row in text.splitlines() if row.startswith("      ·is ")][-1]
    assert [int(x) for x in re.findall(r"\d+", last)] == [round(100 * x) for x in pattern[-1].tolist() if x]
    row = next(r for r in text.splitlines() if r.startswith("  attn.q "))
    q = explained.trace.all("layers.2.attn.q")[0].value[:, :, 1]
    assert row.split()[-1] == number.number(float(q.max()))
    assert "T 5, K 32" in row and "H 4" not in row


def test_blocks_of_another_make_are_not_folded() -> None:
    view = explain(random_model("deepseek_v3"), [5, 3], 1)
    assert folded(view) == {"layers.2"}
    assert folded(explain(random_model("t5"), [5, 3], 1)) == {"encoder.layers.1", "decoder.layers.1", "decoder.layers.2"}


def test_recomputed_values_say_so(explained: RunView, specimen: Model) -> None:
    """Beside torch's kernel scores are recomputed, and say how far; our own kernel writes them itself."""
    with native.off():
        by_torch = explain(specimen, PROMPT, 1)
    seen = by_torch.trace.all("layers.0.attn.scores")[0]
    assert seen.source == "recomputed" and seen.error is not None
    assert f"≈{number.number(seen.error)}" in plain(by_torch, width=160)
    assert ("≈" in plain(explained, width=160)) != native.available()
    reference = explain(specimen, PROMPT, 1, inside="reference")
    assert "[reference]" in plain(reference, width=160) and "≈" not in plain(reference, width=160)
    edited = explain(specimen, PROMPT, 1, edit={"layers.0.attn.z": lambda z: z * 0})
    assert "[edited]" in plain(edited, width=160)


def test_numbers_that_are_none() -> None:
    """NaN and infinities are drawn as such, are null in JSON, and do not disturb the other numbers."""
    model = random_model("gpt2")
    with torch.no_grad():
        model.weight("layers.0.ffn.down.bias")[0] = -math.inf
    view = explain(model, [5, 3], 1)
    text = plain(view, width=160)
    assert "NaN" in text and "-∞" in text and "the first tensor with a NaN is layers.1.attn_norm" in text.replace("The", "the")
    document = run_document(view.run, view.trace.steps)
    json.dumps(document, allow_nan=False)
    accept(document, "explain")
    assert document["next"]["probability"] is None


def test_formulas() -> None:
    """A formula has the part's own scale, names the summand of a sum of channels, and shows the operands of an unknown op."""
    latent = {s.path: s for s in explain(random_model("deepseek_v3"), [5, 3], 1).trace}
    dims = {p: s.dims for p, s in latent.items()}
    assert formula(latent["layers.0.attn.scores"], dims) == "(q[:K]·kᵀ + q_rot·k_sharedᵀ) / √24"
    assert formula(latent["layers.0.attn.latent"], dims) == "kv_a[:C] / rms(kv_a[:C]) · W_kv_norm"
    assert formula(latent["layers.0.attn.k_shared"], dims) == "RoPE(kv_a[C:])"
    plain_op = latent["layers.0.mid"]
    plain_op.op = "mystery"
    assert formula(plain_op, dims) == "mystery(embed, attn)"


def test_pictures() -> None:
    assert sparkline.cells(torch.tensor([1.0, -3.0, 2.0, 0.0]), 2) == [-3.0, 2.0]
    assert sparkline.cells(torch.tensor([1.0, -3.0]), 4) == [1.0, 1.0, -3.0, -3.0]
    value = torch.tensor([[[1.0, 0.0], [0.0, -2.0]]])
    assert sparkline.strip(value, "B T D", 4, False).plain == "  ██"
    drawn = sparkline.strip(value, "B T D", 4, True)
    colours = [(s.style.color.triplet, s.style.bgcolor.triplet) for s in drawn.spans]  # type: ignore[union-attr]
    assert colours[0] == (sparkline.RED, sparkline.WHITE) and colours[-1] == (sparkline.WHITE, sparkline.BLUE)
    assert sparkline.bar(0.5, 4) == "██" and sparkline.bar(0.0, 4) == ""


@pytest.mark.parametrize(
    ("x", "written"),
    [(0.0, "0"), (-2.1139, "-2.114"), (12.339, "12.34"), (0.0000123, "1.2e-5"), (1234.5, "1234"), (9.99951, "10.00"),
     (1e6, "1.000e6"), (float("nan"), "NaN"), (float("-inf"), "-∞"), (7, "7")],
)  # fmt: skip
def test_number(x: float, written: str) -> None:
    assert number.number(x) == written


def test_pieces_show_every_byte() -> None:
    shown = [visible(Piece(1, "", raw, False)) for raw in (b" a b", b"\n\x1b", "é".encode(), b"\xe4\xb8", b"")]
    assert shown == ["·a·b", "\\n\\x1b", "é", "<E4 B8>", ""]


WRONG = [
    (["nix/da/x", "hi"], "nix/da/x"),
    (["pellucid/nix", "hi"], "pellucid/nix"),
    ([""], "prompt"),
    (["hi", "--cell", "layers.0.attn.scoress", "0,0,0"], "layers.0.attn.scores"),
    (["hi", "--cell", "layers.0.attn.scores", "0,0"], "B H T S"),
    (["hi", "--cell", "layers.0.attn.scores", "0,0,99"], "99"),
    (["hi", "--cell", "layers.0.attn.scores", "a,b"], "a,b"),
    (["hi", "--cell", "layers.0.attn.scores"], "--cell"),
    (["hi", "--lang", "fr"], "fr"),
    (["hi", "--layer", "9"], "9"),
    (["hi", "--layer", "x"], "--layer"),
    (["hi", "--head", "-1"], "-1"),
    (["hi", "--head", "4"], "0 to 3"),
    (["hi", "--steps", "0"], "0"),
    (["hi", "--steps", "9999"], "positions"),
    (["hi", "--top", "0"], "--top"),
    (["hi", "--dtype", "int8"], "int8"),
    (["hi", "--nix"], "--nix"),
    (["1,99999", "--ids"], "99999"),
    (["hi", "--ids"], "hi"),
    (["a", "b", "c"], "c"),
    ([], "MODEL"),
]


@pytest.mark.parametrize(("words", "named"), WRONG)
def test_wrong_use_is_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("explain", *words, capsys=capsys)
    assert code == 2
    assert out == ""
    assert re.fullmatch(r"pellucid: [^\n]+\n", err)
    assert named in err
