"""`pellucid try`: both answers, the first tensor that differs, and one line for what cannot be tried."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import pellucid
from documented import accept, refused
from pellucid.api.fresh_weights import redrawn
from pellucid.api.model import make
from pellucid.commands import main
from pellucid.documents.number import number
from pellucid.errors import UseError
from pellucid.messages import phrases, speaking
from pellucid.watching.change_text import parse_change

SPECIMEN, PROMPT = "pellucid/capitals", "The capital of France is"


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["try", *arguments]) == code
    got = capsys.readouterr()
    return got.out if code == 0 else got.err


def test_both_answers_and_the_first_difference(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, SPECIMEN, PROMPT, "--change", "layers.0.ffn = 0")
    answers, _, rest = out.partition("KL(")
    assert "·Paris" in answers and "layers.0.ffn = 0" in answers and "layers.0.ffn[0, 0, 124]" in rest
    rest, _, depth = rest.partition("By depth")
    assert [line.split()[0] for line in depth.splitlines() if line.startswith(" layers.")] == [f"layers.{i}.out" for i in range(4)]
    lines = [line.split() for line in rest.splitlines() if line.startswith(" layers.")]
    assert [words[0] for words in lines] == [f"layers.{i}.out" for i in range(4)]
    every = run(capsys, SPECIMEN, PROMPT, "--change", "layers.0.ffn = 0", "--all")
    assert "layers.3.attn.pattern" in every and "layers.0.attn.q" in every
    assert "·Tokyo" in run(capsys, SPECIMEN, PROMPT, "--change", 'norm[T=-1] = from "The capital of Japan is"')


def test_the_document_is_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["layers.2.attn.z[H=3, T=-1] *= 0.5", "layers.1.ffn[:, 2, 5:7] += 0.25"]
    document = json.loads(run(capsys, SPECIMEN, PROMPT, "--steps", "2", "--json", *(x for c in changes for x in ("--change", c))))
    accept(document, "try")
    model = pellucid.load(SPECIMEN)
    edit = [pellucid.times("layers.2.attn.z", 0.5, H=3, T=-1), pellucid.add("layers.1.ffn", 0.25, T=2, D=(5, 6))]
    both = pellucid.compare(pellucid.trace(model, PROMPT, 2), pellucid.trace(model, PROMPT, 2, edit=edit))
    assert document["first"] == both.first.path == "layers.1.ffn"
    assert [(t["path"], t["largest"], t["changed"]) for t in document["tensors"]] == [(t.path, t.largest, t.changed) for t in both.tensors]
    assert document["answers"][0]["divergence"] == both.answers[0].divergence
    assert document["runs"][1]["changes"] == changes
    assert refused(document | {"first": 3}, "try")


def test_rows_heads_and_experts_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """In Chinese, with experts, and a prompt whose rows moved: which rows were compared, each by itself, and the loads."""
    model, prompt, later = "pellucid/capitals-deepseek", "法国的首都是", "我知道法国的首都是"
    with speaking("zh"):
        out = run(capsys, model, prompt, "--against", later, "--by", "T", "--lang", "zh")
    document = json.loads(run(capsys, model, prompt, "--against", later, "--json"))
    accept(document, "try")
    (i, j) = document["rows"][-1]
    assert f"{i} → {j}" in out and "相比的行" in out and "每个专家" in out
    embed = next(one for one in document["along"] if one["path"] == "embed")
    assert embed["rows"] == [0.0] * len(document["rows"]) and embed["heads"] == []
    assert [sum(own) for own in document["loads"][0]["loads"]] == [2 * len(one["ids"]) for one in document["runs"]]
    heads = run(capsys, model, prompt, "--change", "layers.1.attn.z[H=2] = 0", "--by", "H")
    (line,) = (line.split() for line in heads.splitlines() if line.split()[:1] == ["layers.1.attn.z"])
    assert line[1:] == ["0", "0", "100.0%", "0"]
    assert "--by is X" in run(capsys, model, prompt, "--with", "norm=none", "--by", "X", code=2)


def test_a_part_is_left_out_by_what_it_read(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, SPECIMEN, PROMPT, "--change", "layers.1.ffn = layers.1.ffn.in", "--change", "layers.2.attn.q.in[T=-1] = 0", "--json")
    first, edit = json.loads(out), [pellucid.put("layers.1.ffn", "layers.1.ffn_norm"), pellucid.zero("layers.2.attn.q.in", T=-1)]
    model = pellucid.load(SPECIMEN)
    both = pellucid.compare(pellucid.trace(model, PROMPT), pellucid.trace(model, PROMPT, edit=edit))
    assert [(t["path"], t["largest"]) for t in first["tensors"]] == [(t.path, t.largest) for t in both.tensors]
    assert first["first"] == "layers.1.ffn" and first["answers"][0]["divergence"] > 0


def test_measures_by_depth(capsys: pytest.CaptureFixture[str]) -> None:
    """Length, likeness and gradient of both runs are those of hand-made ones; a change reaches them from its block on."""
    document = json.loads(run(capsys, SPECIMEN, PROMPT, "--change", "layers.1.ffn *= 0.5", "--json", "--dtype", "float64"))
    model = pellucid.load(SPECIMEN, dtype="float64")
    ids = torch.tensor([model.tokenizer.encode(PROMPT)])
    paris = model.tokenizer.encode(" Paris")[0]
    for side, edit in enumerate(([], [pellucid.times("layers.1.ffn", 0.5)])):
        with pellucid.watch(model, only="layers.*.out", grad=True, edit=edit) as seen:
            (-model(ids)[0, -1].log_softmax(-1)[paris]).backward()
        for i in range(4):
            own, x = document["depth"][i + 1], seen[f"layers.{i}.out"]
            assert own["path"] == x.path and own["size"][side] == pytest.approx(float(x.value.detach().norm(dim=-1).mean()), rel=1e-9)
            assert own["gradient"][side] == pytest.approx(float(x.grad.norm()), rel=1e-7)
    a, b = document["depth"][1]["size"]
    assert a == b and all(d["size"][0] != d["size"][1] for d in document["depth"][2:])
    t5 = run(capsys, "pellucid/capitals-t5", PROMPT, "--change", "decoder.layers.0.ffn = 0", "--json")
    assert json.loads(t5)["depth"] == []


def test_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    """The two runs differ from the first tensor on that the switch makes."""
    out = run(capsys, SPECIMEN, PROMPT, "--with", "norm=none")
    assert "norm=none" in out and "First layers.0.attn_norm[" in out and "·Paris" in out
    document = json.loads(run(capsys, SPECIMEN, PROMPT, "--with", "layers.2.attn.scale=1", "--with", "layers.3.ffn.up.rank=4", "--json"))
    model = pellucid.load(SPECIMEN)
    other = pellucid.low_rank(pellucid.variant(model, {"layers.2.attn.scale": 1.0}), {"layers.3.ffn.up": 4})
    both = pellucid.compare(pellucid.trace(model, PROMPT), pellucid.trace(other, PROMPT))
    assert document["first"] == "layers.2.attn.scores" and document["answers"][0]["divergence"] == both.answers[0].divergence
    assert [run["model"] for run in document["runs"]] == [model.name, other.name]
    assert "layers.3.ffn.up.narrow" in document["only"][1]
    assert "nearest: layers.*.attn.scale" in run(capsys, SPECIMEN, PROMPT, "--with", "layers.*.attn.scal=1", code=2)
    assert "1 … 128" in run(capsys, SPECIMEN, PROMPT, "--with", "layers.0.ffn.up.rank=x", code=2)


def test_numbers_that_are_none_have_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, SPECIMEN, PROMPT, "--change", "layers.3.out[T=1] = nan")
    assert "First layers.3.out[0, 1, 0]: A " in out and "B NaN" in out and "·Paris" in out
    assert not any("█" in line for line in out.splitlines() if line.startswith(" layers.3.out") and "∞" in line)
    assert "embed[0, 0, 0]" in run(capsys, SPECIMEN, PROMPT, "--change", "embed = nan", code=2)
    experts = run(capsys, "pellucid/capitals-deepseek", PROMPT, "--change", "layers.1.ffn.chosen[A=0] = 3")
    assert "B 3." in experts and "B 3.0" not in experts


def test_another_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, SPECIMEN, PROMPT, "--against", "The capital of Japan is")
    assert "·Paris" in out and "·Tokyo" in out and "positions" in out
    assert "12 + 9" not in out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_encoder_answers_at_its_blanks_alone(capsys: pytest.CaptureFixture[str], lang: str) -> None:
    how = "--change", "layers.0.ffn = 0", "--lang", lang
    plain = run(capsys, "pellucid/capitals-bert", PROMPT, *how)
    assert phrases(lang)["explain.blankless"] in plain and "KL(" not in plain and "layers.0.ffn[" in plain
    blank = run(capsys, "pellucid/capitals-bert", f"{PROMPT} ___", *how)
    assert "·Paris" in blank and "KL(" in blank and phrases(lang)["explain.blankless"] not in blank
    assert json.loads(run(capsys, "pellucid/capitals-bert", PROMPT, *how, "--json"))["answers"] == []


def test_a_vector_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_file({"v": torch.linspace(-1, 1, 128), "w": torch.ones(3)}, tmp_path / "v.safetensors")
    file = tmp_path / "v.safetensors"
    assert "layers.2.out" in run(capsys, SPECIMEN, PROMPT, "--change", f"layers.2.out[T=-1] += {file}:v")
    assert "layers.2.out" in run(capsys, SPECIMEN, PROMPT, "--change", f"layers.2.out without {file}:v")
    assert "v, w" in run(capsys, SPECIMEN, PROMPT, "--change", f"layers.2.out += {file}", code=2)
    assert "(3,)" in run(capsys, SPECIMEN, PROMPT, "--change", f"layers.2.out += {file}:w", code=2)
    assert "no file" in run(capsys, SPECIMEN, PROMPT, "--change", "layers.2.out += nothing.safetensors", code=2)


WRONG = {
    "layers.0.ffn 0": "is no change",
    "layers.0.ffn = ": "is no change",
    "layers.0.fn = 0": "nearest: layers.0.ffn",
    "layers.0.ffn[Q=1] = 0": "no axis Q",
    "layers.0.ffn[0, 1] = 0": "2 indices",
    "layers.0.ffn[T=9] = 0": "no position",
    'layers.0.ffn[T="Spain"] = 0': '"Spain" occurs 0 times',
    "layers.0.ffn[T=a] = 0": "is no index",
    "layers.0.ffn[T=1, T=2] = 0": "is no index",
    "layers.0.ffn[T=::0] = 0": "is no index",
    "layers.0.ffn = 1e99": "does not fit",
    "layers.0.ffn = 1e400": "does not fit",
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.quick(4)
def test_what_cannot_be_tried_is_one_line(capsys: pytest.CaptureFixture[str], text: str) -> None:
    err = run(capsys, SPECIMEN, PROMPT, "--change", text, "-q", code=2)
    assert WRONG[text] in err and err.count("\n") == 1
    with speaking("zh"):
        assert WRONG[text] not in run(capsys, SPECIMEN, PROMPT, "--change", text, "-q", "--lang", "zh", code=2) or "nearest" in WRONG[text]


def test_nothing_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--change, --with or --against" in run(capsys, SPECIMEN, PROMPT, code=2)
    assert "steps" in run(capsys, SPECIMEN, PROMPT, "--change", "embed = 0", "--steps", "0", code=2)


READ = {
    "layers.2.attn.z[H=3, T=-1] = 0": ("layers.2.attn.z", {"H": 3, "T": -1}, "=", 0.0),
    "x[T=4, S=3] = -inf": ("x", {"T": 4, "S": 3}, "=", float("-inf")),
    "layers.*.ffn*=.5": ("layers.*.ffn", {}, "*=", 0.5),
    "layers.2.attn.q[K+R=3, T=4:] += v.safetensors": ("layers.2.attn.q", {"K+R": 3, "T": slice(4, None)}, "+=", "v.safetensors"),
    "x[0, 1:3, :] = -1e-05": ("x", (0, slice(1, 3), slice(None)), "=", -1e-05),
    "x[D=0,2,5, T=:4:2] without a b.safetensors:n": ("x", {"D": (0, 2, 5), "T": slice(None, 4, 2)}, "without", "a b.safetensors:n"),
    'x[T="a \\"b\\" ]"] = from "say \\"no\\" [T=1]"': ("x", {"T": 'a "b" ]'}, "=", 'say "no" [T=1]'),
    "x = from The capital": ("x", {}, "=", "The capital"),
}


@pytest.mark.parametrize("text", READ)
def test_a_change_is_read(text: str) -> None:
    c = parse_change(text)
    values = [value for value in (c.number, c.file, c.prompt) if value is not None]
    assert (c.path, c.at, c.sign, *values) == READ[text]


def test_the_other_runs_cells_are_read() -> None:
    assert parse_change('x[T="a"] = from "b" [T="c, d"]').source == {"T": "c, d"}
    assert parse_change("x = from b [0, 1, :]").source == (0, 1, slice(None))
    assert parse_change("x = from b").source is None


def test_texts_that_are_no_change() -> None:
    for text in ("", "=", "x", "x =", "x == 0", "x = y z", 'x[T="a] = 0', "x[T=1 = 0", "x without 3", 'x *= from "y"'):
        with pytest.raises(UseError):
            parse_change(text)


def test_fresh_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """Both runs have the first weights of a run of training with this seed; another seed, and the trained weights, give other numbers."""
    from pellucid.training.loop import initialise

    def tried(*more: str) -> dict[str, Any]:
        document = json.loads(run(capsys, SPECIMEN, PROMPT, "--with", "norm=none", "--json", *more))
        accept(document, "try")
        return {"depth": document["depth"], "answers": document["answers"]}

    one, again, other, trained = tried("--fresh", "0"), tried("--fresh", "0"), tried("--fresh", "1"), tried()
    assert one == again and one != other and one != trained
    model = pellucid.load(SPECIMEN, dtype="float32")
    first = make(model.hf, dtype=torch.float32)
    initialise(first.module, len(model.config.layers), 0.02, 0)
    drawn = redrawn(model, 0)
    assert all(torch.equal(p, q) for p, q in zip(drawn.module.parameters(), first.module.parameters(), strict=True))
    assert pellucid.trace(drawn, PROMPT).last_logits().tolist() != pellucid.trace(redrawn(model, 1), PROMPT).last_logits().tolist()
    assert "--quant" in run(capsys, SPECIMEN, PROMPT, "--with", "norm=none", "--fresh", "0", "--quant", "int8", code=2)


def test_several_seeds_have_a_mean_and_a_spread(capsys: pytest.CaptureFixture[str]) -> None:
    """Each seed's numbers are those of its own call, and the terminal writes their mean and deviation; of one seed there is no table."""
    change = ("--change", "layers.1.ffn = 0")
    one = [json.loads(run(capsys, SPECIMEN, PROMPT, *change, "--fresh", seed, "--json")) for seed in ("3", "5", "9")]
    document = json.loads(run(capsys, SPECIMEN, PROMPT, *change, "--fresh", "3,5,9", "--json"))
    accept(document, "try")
    assert all(d["seeds"] is None for d in one) and document["answers"] == one[0]["answers"] and document["seeds"]["seeds"] == [3, 5, 9]
    last = document["seeds"]["depth"][-1]
    assert last["path"] == "layers.3.out"
    slopes = [d["depth"][-1]["gradient"][1] for d in one]
    assert last["gradient"][1]["values"] == slopes and len(set(slopes)) == 3
    far = [next(t["relative"] for t in d["tensors"] if t["path"] == "layers.3.out") for d in one]
    assert last["difference"]["values"] == far
    mean = sum(far) / 3
    deviation = (sum((x - mean) ** 2 for x in far) / 2) ** 0.5
    assert last["difference"]["mean"] == pytest.approx(mean) and last["difference"]["spread"] == pytest.approx(deviation)
    with speaking("en"):
        assert f"{number(100 * mean)}% ± {number(100 * deviation)}" in run(capsys, SPECIMEN, PROMPT, *change, "--fresh", "3,5,9")
    assert refused(document | {"seeds": {"seeds": [-1]}}, "try")


@pytest.mark.parametrize("seeds", ["", "1,,2", "-1", "a", ",".join(map(str, range(65)))])
def test_seeds_that_are_none_are_refused_in_one_line(capsys: pytest.CaptureFixture[str], seeds: str) -> None:
    line = run(capsys, SPECIMEN, PROMPT, "--change", "layers.1.ffn = 0", "--fresh", seeds, code=2)
    assert line.count("\n") == 1 and "64" in line
