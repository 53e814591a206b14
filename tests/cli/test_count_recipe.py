"""`pellucid count RECIPE`: the bill of a run before it starts."""

import json
import re
from pathlib import Path

import pytest

import pellucid
from documented import accept
from pellucid.commands import main
from pellucid.documents import recipe_bill as bills
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.errors import TrainError
from pellucid.nn.transformer import build
from pellucid.training.recipe import read_recipe
from pellucid.training.shards import load_tokenizer
from text_runs import recipe_of, shards_of
from training import ROOT

STORIES = ROOT / "recipes" / "stories.toml"


def test_a_recipe_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters as the model has them, moments and gradients of float32, and the tokens of all steps; as text in both languages."""
    assert main(["count", str(STORIES), "--json"]) == 0
    bill = json.loads(capsys.readouterr().out)
    accept(bill, "count")
    s, made = read_recipe(STORIES).train, recipe_bill(STORIES)
    total = sum(p.numel() for p in build(made.bill.config).parameters())
    training = {name: entry["value"] for name, entry in bill["training"].items()}
    assert bill["parameters"]["total"] == total and training["memory.weights"] == training["memory.gradients"] == 4 * total
    assert training["memory.moments"] == 8 * total and "memory.master" not in training
    assert bill["run"]["tokens"] == s.steps * s.batch * 256 and bill["run"]["flops"] == s.steps * training["flops.total"]
    assert bill["run"]["hours"] is None
    for language, word in (("en", "tokens, at most"), ("zh", "词元数")):
        assert main(["count", str(STORIES), "--lang", language]) == 0
        assert word in (out := capsys.readouterr().out) and f"{bill['run']['tokens']:,}" in out


def test_micro_batches_are_counted_once(tmp_path: Path) -> None:
    """The work of a step is the same, the activations are of one forward; and a price needs the hours of a device."""
    full, micro = (recipe_bill(recipe_of(tmp_path, **given), "h200", 3.0) for given in ({}, {"train__micro": "2"}))
    assert full.run() == micro.run() and (full.forwards, micro.forwards) == (1, 4)
    kept = [given.document()["training"]["memory.activations"]["value"] for given in (full, micro)]
    assert 3 < kept[0] / kept[1] < 4.01
    run = full.run()
    assert run["hours"] and run["price"] == pytest.approx(3 * run["hours"])


def test_a_tokenizer_that_is_taken_is_counted(tmp_path: Path) -> None:
    shards_of(tmp_path / "first")
    path = recipe_of(tmp_path, size=None, tokenizer__from='"first/data"')
    ids = load_tokenizer(tmp_path / "first" / "data" / "tokenizer.json").get_vocab_size()
    assert recipe_bill(path).bill.config.vocab == ids < 400
    assert bills.ids_of(read_recipe(recipe_of(tmp_path)), read_recipe(path).data) == 400  # type: ignore[arg-type]


def test_rows_beyond_the_positions_are_refused_as_in_training(tmp_path: Path) -> None:
    """By the field of the recipe, not by the command's own `--context`."""
    path = recipe_of(tmp_path, data__length="97")
    allowed = re.escape("data.length is 97; the model has 96 positions; allowed: 2 to 96")
    for use in (recipe_bill, lambda recipe: pellucid.train(recipe, tmp_path / "run")):
        with pytest.raises(TrainError, match=allowed):
            use(path)


REFUSED = ("{capitals} --context 8", "{stories} gpt2", "{stories} --lora 4", "{stories} --context 8", "no.toml")


@pytest.mark.parametrize("given", REFUSED)
def test_what_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A second model, and settings that the recipe has itself."""
    names = {"capitals": ROOT / "recipes" / "capitals.toml", "stories": STORIES}
    assert main(["count", *(text.format(**names) for text in given.split())]) == 2
    output = capsys.readouterr()
    assert not output.out and output.err.count("\n") == 1


def test_an_adapter_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers are those that train in the run; the base is frozen, and in blocks where the recipe holds it so."""
    text = (ROOT / "recipes" / "countries-chat.toml").read_text(encoding="utf-8")
    (tmp_path / "plain.toml").write_text(text, encoding="utf-8")
    (tmp_path / "held.toml").write_text(text.replace("template =", 'quant = "int4"\ntemplate ='), encoding="utf-8")
    model = pellucid.load("pellucid/capitals")
    base = model.num_parameters()
    model.lora(8, ["layers.*.attn.[qkvo]", "layers.*.ffn.*"])
    low = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    plain, blocks = (
        {n: e["value"] for n, e in recipe_bill(tmp_path / f"{n}.toml").document()["training"].items()} for n in ("plain", "held")
    )
    assert plain["memory.adapters"] == plain["memory.gradients"] == 4 * low and plain["memory.moments"] == 8 * low
    assert plain["memory.weights"] == 4 * base > 4 * blocks["memory.weights"] and blocks["memory.adapters"] == 4 * low
    assert main(["count", str(tmp_path / "plain.toml")]) == 0 and f"{low:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "table", "texts"), [("prefer", "[prefer]", 2), ("reward", "[reward]\ngroup = 3\nnew = 9", 3), ("causal", "", 1)]
)
def test_a_row_of_several_texts_is_counted(name: str, table: str, texts: int, tmp_path: Path) -> None:
    """A pair is two documents, and a prompt its answers, each as long as a prompt and an answer but for the last token."""
    (tmp_path / "t.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c", "text": "a"}\n', encoding="utf-8")
    data = 'files = ["t.jsonl"]\nlength = 32\n' + ('field = ["prompt", "chosen"]\n' if name == "reward" else "")
    (tmp_path / "r.toml").write_text(
        f'name = "r"\nobjective = "{name}"\n[model]\nfrom = "pellucid/capitals"\n{table}\n[data]\n{data}'
        "[train]\nseed = 1\nsteps = 10\nbatch = 4\nlearning_rate = 1e-3\n",
        encoding="utf-8",
    )
    bill = recipe_bill(tmp_path / "r.toml")
    assert bill.bill.setting.batch == 4 * texts and bill.run()["tokens"] == 10 * 4 * texts * (40 if name == "reward" else 32)
    assert any("3 answers" in note for note in bill.bill.notes) == (name == "reward")


def test_the_teacher_is_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "capitals-half.toml").read_text(encoding="utf-8")
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    (tmp_path / "r.toml").write_text(text.replace('folder = "pellucid/capitals"', 'files = ["a.txt"]\nlength = 32'), encoding="utf-8")
    assert main(["count", str(tmp_path / "r.toml"), "--json"]) == 0
    bill = json.loads(capsys.readouterr().out)
    accept(bill, "count")
    teacher = pellucid.load("pellucid/capitals").num_parameters()
    assert bill["training"]["memory.teacher"]["value"] == 4 * teacher and bill["training"]["flops.teacher"]["value"] > 0
    assert main(["count", str(tmp_path / "r.toml")]) == 0
    assert "the teacher's weights" in (out := capsys.readouterr().out) and "held in the teacher's forward" in out


def test_moments_are_named_after_their_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run by Muon they are both optimizers'; in both languages."""
    names = {"en": ("AdamW's moments", "moments of Muon and AdamW"), "zh": ("AdamW 的矩", "Muon 与 AdamW 的矩")}
    for optimizer in ("adamw", "muon"):
        path = recipe_of(tmp_path / optimizer, train__optimizer=f'"{optimizer}"')
        for language, both in names.items():
            assert main(["count", str(path), "--lang", language]) == 0
            out = capsys.readouterr().out
            assert (both[1] in out) is (optimizer == "muon") and (both[0] in out.replace(both[1], "")) is (optimizer == "adamw")
