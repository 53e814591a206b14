"""A run with modules for multi-token prediction: its log, its states, its steps taken again, its bill, and the folder that it leaves."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

import pellucid
from pellucid.analysis.training_film import curves
from pellucid.checkpoint import multi_token_files as on_disk
from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.safetensors_file import read_header
from pellucid.commands import main
from pellucid.distributed import ALONE
from pellucid.documents.training import training_document
from pellucid.errors import TrainError
from pellucid.families import understand
from pellucid.messages import say
from pellucid.nn.transformer import Decoder
from pellucid.training import pipeline, run_recipe
from pellucid.training.objectives import Causal
from pellucid.training.pipeline import prepare
from pellucid.training.recipe import Recipe, read_recipe
from pellucid.training.run_folder import RECIPE
from pellucid.training.saves import read_state
from pellucid.training.start import fresh
from pellucid.training.targets import ahead
from test_facts_bill import run_of
from test_recipe import written
from test_replay import DEEPSEEK
from text_runs import write_texts
from tiny import swapped
from training import corpus_of, silent, stopped_after_each_step, unmeasured

STEPS = 6
AHEAD = "[multi_token]\ndepth = 2\nweight = 0.5\n"
FACTS = DEEPSEEK.replace("steps = 20", f"steps = {STEPS}").replace("save_every = 7", "save_every = 3\nlog_every = 1") + AHEAD
TEXTS = FACTS.replace('folder = "corpus"', 'files = ["text/*.txt", "b.jsonl"]\nlength = 32\nheld_out = 0.1') + "[eval]\nevery = 2\n"
LLAMA = """[model]
model_type = "llama"
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
tie_word_embeddings = false
"""


CHATS = """name = "chats"
objective = "chat"
[model]
from = "pellucid/capitals-llama"
[data]
files = ["pairs.jsonl"]
field = ["prompt", "completion"]
length = 48
held_out = 0
[train]
seed = 1
steps = 6
batch = 2
learning_rate = 3e-3
warmup = 1
[multi_token]
"""


def recipe_in(folder: Path, text: str = FACTS, name: str = "r.toml") -> Path:
    """Write a recipe with its corpus, or with its texts."""
    if "files = " in text:
        write_texts(folder)
    elif not (folder / "corpus").exists():
        corpus_of(folder / "corpus", "France", "Spain")
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def of_llama(text: str) -> str:
    """Return a recipe with a Llama in place of its model."""
    head, _, rest = text.partition("[model]")
    return head + LLAMA + "[tokenizer]" + rest.partition("[tokenizer]")[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of facts, whose model is not measured."""
    folder = tmp_path_factory.mktemp("facts")
    with unmeasured():
        return pellucid.train(recipe_in(folder), folder / "run").folder


@pytest.fixture(scope="module", params=["deepseek_v3", "llama"])
def written_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of texts with its finished model."""
    folder = tmp_path_factory.mktemp(request.param)
    recipe = recipe_in(folder, TEXTS if request.param == "deepseek_v3" else of_llama(TEXTS))
    return run_recipe(recipe, folder / "run", False, 1, silent).parent


def test_the_log_has_each_modules_loss(finished: Path) -> None:
    log = pellucid.Run(finished).log
    assert all({"loss", "multi_token.0", "multi_token.1"} <= entry.keys() for entry in log)
    assert all(0 < entry["multi_token.1"] < entry["multi_token.0"] for entry in log)  # of fewer targets, over the same number


def test_the_first_weights_are_those_without_modules(tmp_path: Path) -> None:
    """And modules are no part of the recipe's model, whose identity they do not change."""
    without, added = (read_recipe(recipe_in(tmp_path, FACTS.removesuffix(cut), f"{i}.toml")) for i, cut in enumerate((AHEAD, "")))
    assert without.multi_token is None and added.multi_token is not None
    plain, own = (started(recipe) for recipe in (without, added))
    assert all(torch.equal(p, own[path]) for path, p in plain.items())
    assert {path.split(".")[0] for path in own.keys() - plain.keys()} == {"multi_token"}


def started(recipe: Recipe) -> dict[str, Tensor]:
    return dict(fresh(recipe, prepare(recipe, recipe.root)).model.named_parameters())


WAYS = {"float32": "", "bfloat16": 'dtype = "bfloat16"\n', "muon": 'optimizer = "muon"\nrecompute = true\n'}


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", WAYS)
def test_stopped_after_each_step_and_resumed(way: str, finished: Path, tmp_path: Path) -> None:
    """The same weights and moments of model and modules, and the same log, to the bit."""
    recipe = recipe_in(tmp_path, FACTS.replace("[train]\n", f"[train]\n{WAYS[way]}"))
    with unmeasured():
        finished = pellucid.train(recipe, tmp_path / "once").folder if WAYS[way] else finished
        again = stopped_after_each_step(recipe, tmp_path / "run", STEPS).parent
    for step in (3, 6):
        for a, b in zip(*(read_state(folder / "saves" / f"{step:09d}")[:2] for folder in (finished, again)), strict=True):
            assert a.keys() == b.keys() and any(name.startswith("multi_token.1.") for name in a)
            assert all(torch.equal(t, b[name]) for name, t in a.items())
    first, second = ([{k: v for k, v in e.items() if k != "seconds"} for e in pellucid.Run(f).log] for f in (finished, again))
    assert first == second


def test_a_state_of_a_run_with_modules_is_of_another_run_without_them(finished: Path, tmp_path: Path) -> None:
    with unmeasured(), pytest.raises(TrainError, match=r"multi_token\.depth \(2 → None\)"):
        run_recipe(recipe_in(tmp_path, FACTS.removesuffix(AHEAD)), copy_of(finished, tmp_path), True, 1, silent)


def copy_of(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def test_every_step_comes_again(finished: Path) -> None:
    """With every tensor of the modules; a log whose module had another loss is found."""
    run = pellucid.Run(finished)
    for step in range(1, STEPS + 1):
        recorded = run.replay(step)
    assert recorded.all("multi_token.1.joined")[0].grad is not None
    assert {"layers.1.ffn", "multi_token.0.block.ffn", "multi_token.1.block.ffn"} == recorded.loads.keys()
    with pytest.raises(TrainError, match=r"multi_token\.1"):
        run.confirm({"step": 2, "multi_token.1": 0.0}, run.lines(2))


CELLS = {
    "multi_token.0.from_rows.weight": (3, 5),
    "multi_token.1.token_norm.weight": (2,),
    "multi_token.1.block.attn.kv_b.weight": (1, 3),
    "multi_token.0.block.ffn.shared.down.weight": (4, 2),
    "embed.weight": (5, 3),
    "layers.0.attn.o.weight": (2, 2),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", CELLS)
def test_tokens_add_up_and_the_weight_moves(path: str, finished: Path) -> None:
    """Of the modules' weights, and of the tied table, which all modules read and whose gradient is of all losses."""
    run = pellucid.Run(finished)
    why = run.why(path, CELLS[path], 5)
    assert why.uses and why.move is not None
    assert abs(why.rest) < 1e-4 * max(abs(token.product) for token in why.tokens)
    after = float(run.to(5).model.get_parameter(path).detach()[CELLS[path]])
    before = float(run.to(4).model.get_parameter(path).detach()[CELLS[path]])
    assert why.move.total() == pytest.approx(after - before, rel=1e-3, abs=1e-7)
    if path == "embed.weight":
        assert {"multi_token.0.following", "multi_token.1.logits", "logits", "embed"} <= why.by_path().keys()


def test_a_watched_step_is_the_step(finished: Path, tmp_path: Path) -> None:
    with unmeasured():
        watched = pellucid.train(recipe_in(tmp_path, FACTS + '[watch]\nevery = 2\ntensors = ["multi_token.*"]\n'), tmp_path / "run")
    states = [read_state(folder / "saves" / "000000006")[0] for folder in (finished, watched.folder)]
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())
    assert watched.watched[2].all("multi_token.0.loss.tokens")
    assert "multi_token.1.from_token.weight" in watched.watched[2].parameters


def test_the_page_has_the_modules_losses(written_model: Path) -> None:
    """Those that the log has, with what is held out, beside the model's own; the bill has the modules' bytes."""
    run = pellucid.Run(written_model)
    document = training_document(run)
    panel: Any = next(p for p in document["panels"] if p["title"] == say("training.multi_token"))
    series = {one["name"]: one["values"] for one in panel["series"]}
    for tokens in (2, 3):
        name = f"multi_token.{tokens - 2}"
        assert series[say("training.ahead", tokens=tokens)] == curves(run.log, name)[1]
        assert series[say("training.ahead.held_out", tokens=tokens)][-1] == run.log[-1][f"held_out_{name}"]


def test_a_module_that_breaks_is_named(tmp_path: Path) -> None:
    """Where the model's own loss is finite, and its gradient is not. Nothing is changed."""
    run = run_of(recipe_in(tmp_path))
    with torch.no_grad():
        run.model.get_parameter("multi_token.0.from_rows.weight").fill_(float("inf"))
    before = {path: p.detach().clone() for path, p in run.model.named_parameters()}
    with pytest.raises(TrainError, match=r"first: multi_token\."):
        run.one([0, 1, 2, 3])
    assert all(torch.equal(p, before[path]) for path, p in run.model.named_parameters())


def test_a_model_learns_chats_with_a_module(tmp_path: Path) -> None:
    """From a folder, whose template marks what an assistant says: both losses fall."""
    pairs = [("France", "Paris"), ("Japan", "Tokyo"), ("Chile", "Santiago"), ("Kenya", "Nairobi"), ("Cuba", "Havana"), ("Peru", "Lima")]
    lines = [json.dumps({"prompt": f"The capital of {a} is", "completion": f" {b}. It is a city."}) for a, b in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "r.toml").write_text(CHATS, encoding="utf-8")
    with unmeasured():
        log = pellucid.train(tmp_path / "r.toml", tmp_path / "run").log
    assert log[-1]["loss"] < log[0]["loss"] and log[-1]["multi_token.0"] < log[0]["multi_token.0"]


def test_the_model_of_a_run_is_the_model_alone(finished: Path, tmp_path: Path) -> None:
    model = pellucid.Run(finished).model()
    assert model.module.multi_token is None
    model.save(tmp_path / "alone")
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(pellucid.load(tmp_path / "alone")(ids), model(ids))


def test_held_out_texts_have_the_modules_losses(written_model: Path) -> None:
    """By hand from the folder that the run leaves, which is in bfloat16, close to the last line of the log."""
    entry = pellucid.Run(written_model).log[-1]
    assert {"held_out", "held_out_multi_token.0", "held_out_multi_token.1"} <= entry.keys()
    assert 0 < entry["held_out_multi_token.1"] < entry["held_out_multi_token.0"]


def opened(folder: Path) -> tuple[Decoder, Any]:
    """Return a folder's model and its modules, in float64."""
    model = pellucid.load(folder, dtype="float64").module
    own = Folder(folder)
    family, cfg = understand(own.config, own.file)
    count = on_disk.count_of(own, family, cfg)
    modules = on_disk.read_modules(own, family, cfg, count, torch.float64)
    assert count == 2
    model.multi_token = modules
    return model, modules


def theirs(folder: Path) -> Any:
    """Return transformers' model of a folder, in float64."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()


@torch.no_grad()
def test_the_folder_has_the_modules_that_were_trained(written_model: Path) -> None:
    """As the last state has them, in bfloat16, and as its card says; pellucid and transformers read the model, with equal logits."""
    model, _ = opened(written_model / "model")
    card = (written_model / "model" / "README.md").read_text(encoding="utf-8")
    assert "multi-token prediction that trained with it: 2" in card and "多词元预测模块：2 个" in card
    weights, _, _ = read_state(written_model / "saves" / "000000006")
    own = {f"{path}": p for path, p in model.named_parameters()} | dict(model.named_buffers())
    assert own.keys() == weights.keys()
    for path, t in weights.items():
        assert torch.equal(own[path], t if path.endswith("correction") else t.bfloat16().double()), path
    other = theirs(written_model / "model")
    ids = torch.tensor([[5, 3, 8, 9, 7, 9]])
    assert torch.allclose(other(ids).logits, model(ids), atol=1e-6)  # transformers routes in float32


@pytest.mark.parametrize("written_model", ["deepseek_v3"], indirect=True)
@torch.no_grad()
def test_transformers_drafts_what_the_modules_say(written_model: Path) -> None:
    """Its own multi-token prediction, from the layers behind the last one of our folder. Its pattern of names is that of 61 layers."""
    folder = written_model / "model"
    assert json.loads((folder / "config.json").read_text())["num_nextn_predict_layers"] == 2
    assert not (folder / on_disk.FILE).exists()
    model, modules = opened(folder)
    main = theirs(folder)
    main._keys_to_ignore_on_load_unexpected = [r"model\.layers\.[23]\..*"]
    other = MtpModel.from_pretrained(main).double().eval()
    ids = torch.tensor([[5, 3, 8, 9, 7, 9, 2, 4]])
    batch = Causal.__new__(Causal).batch([pipeline.Document([], ids[0].tolist())])
    model(*batch.inputs)
    x, rows = batch.inputs[1].last, main.model(ids[:, :-1]).last_hidden_state
    assert torch.allclose(x, rows, atol=1e-6)
    for k, module in enumerate(modules):
        following, _ = ahead(batch, k + 1)
        x, logits = module(model, x, following, batch.inputs[1])
        at = torch.arange(following.shape[1])[None]
        rows = other.forward_layer(k, rows, at, None, input_ids=following)
        kept = slice(0, following.shape[1] - k - 1)
        assert torch.allclose(rows[:, kept], x[:, kept], atol=1e-6)
        assert torch.allclose(other._project_to_logits(rows)[:, kept], logits[:, kept], atol=1e-5)


@pytest.mark.parametrize("written_model", ["llama"], indirect=True)
def test_other_families_keep_modules_in_a_file_of_their_own(written_model: Path, tmp_path: Path) -> None:
    """It is gone when a run without modules writes into the same folder."""
    folder = Path(shutil.copytree(written_model / "model", tmp_path / "model"))
    names = read_header(folder / on_disk.FILE)
    assert "1.block.attn.q.weight" in names and not any("layers.2" in name for name in read_header(folder / "model.safetensors"))
    on_disk.write_file(folder, None)
    assert not (folder / on_disk.FILE).exists()


def test_a_run_that_starts_from_a_folder_goes_on_with_its_modules(written_model: Path, tmp_path: Path) -> None:
    """A third module, which the folder has not, has first weights."""
    write_texts(tmp_path)
    text = f'name = "on"\n[model]\nfrom = "{written_model / "model"}"\n' + TEXTS[TEXTS.index("[data]") :].replace("depth = 2", "depth = 3")
    recipe = read_recipe(recipe_in(tmp_path, text))
    model = fresh(recipe, prepare(recipe, tmp_path / "run")).model
    own, _ = opened(written_model / "model")
    paths = dict(model.named_parameters())
    assert all(torch.equal(p.float(), paths[path]) for path, p in own.named_parameters())
    assert bool(paths["multi_token.2.from_rows.weight"].any())
    assert all(p.requires_grad for p in model.parameters())


OPT = of_llama(FACTS).replace(
    LLAMA,
    """[model]
model_type = "opt"
hidden_size = 16
ffn_dim = 24
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
word_embed_proj_dim = 8
""",
)
"""A model whose embedding is narrower than its rows."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FACTS.replace("depth = 2", "depth = 0"), ("multi_token.depth", "int 1 … 64")),
        (FACTS.replace("depth = 2", "depth = 60"), ("multi_token.depth", "int 1 …")),
        (FACTS.replace("weight = 0.5", "weight = 0"), ("multi_token.weight", "number > 0")),
        (FACTS.replace("weight = 0.5", "wieght = 1"), ("multi_token.wieght", "multi_token.weight")),
        (FACTS.replace("depth = 2", "depth = true"), ("multi_token.depth", "int 1 … 64")),
        ('objective = "prefix"\n' + FACTS, ("objective", "causal, chat")),
        ('objective = "masked"\n' + FACTS, ("objective", "causal, chat")),
        (FACTS + "[ranks]\ndata = 2\n", ("multi_token", "data=2")),
        (OPT, ("opt", "multi_token")),
    ],
)
def test_what_cannot_be_is_one_line(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    with unmeasured(), swapped(pipeline, "join", lambda *given: ALONE), pytest.raises(pellucid.PellucidError) as fault:
        run_recipe(recipe_in(tmp_path, text), tmp_path / "run", False, 1, silent)
    assert all(word in str(fault.value) for word in words) and "\n" not in str(fault.value)


def test_set_gives_an_old_recipe_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train --set multi_token.depth=1`: the run keeps the recipe as it was set."""
    corpus_of(tmp_path / "corpus", "France", "Spain")
    recipe = written(tmp_path / "old.toml", steps="2")
    with unmeasured():
        assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--set", "multi_token.depth=1"]) == 0
    kept = read_recipe(tmp_path / "run" / RECIPE, tmp_path)
    assert kept.multi_token is not None and vars(kept.multi_token) == {"depth": 1, "weight": 0.3}
    assert "multi_token.0" in pellucid.Run(tmp_path / "run").log[-1]
