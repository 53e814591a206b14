"""Training of adapters beside PEFT's, with and without dropout: twenty steps of AdamW in float64, and runs that are taken again."""

import copy
import json
import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

import judge
import pellucid
from pellucid.checkpoint.adapter import save_adapter
from pellucid.checkpoint.new_adapter import new_adapter, targeted
from pellucid.errors import UseError
from pellucid.nn.adapted import Addition
from pellucid.nn.latent import Latent
from pellucid.training import dropout, run_recipe
from pellucid.training.loop import TrainingRun, batches, learning_rate
from pellucid.training.objectives import Causal
from pellucid.training.replay import Replay
from pellucid.training.stretches import verify_stretches
from test_parity_training import S, documents, theirs
from test_tuning import ADAPTER, chats, lines, recipe, refused
from text_runs import recipe_of
from tiny import swapped
from training import WORDS, moved_as_said, silent, stopped_after_each_step

STEPS, SHARE = 20, 0.25
FAMILIES = {
    "gpt2": ["attn.[qkv]", "ffn.down"],
    "llama": ["attn.[qo]", "ffn.up"],
    "t5": ["attn.[qv]"],
    "deepseek_v3": ["attn.kv_b", "attn.o"],
}


class Masks(nn.Module):
    """PEFT's dropout of one layer, with the masks of our run."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.step = place, 0

    def forward(self, x: Tensor) -> Tensor:
        return x * dropout.mask(x, SHARE, f"{S.seed}:{self.step}:0:{self.place}")


def both(family: str, folder: Path, share: float, dora: bool = False) -> tuple[TrainingRun, Any, Any]:
    """Return our run of a new adapter, PEFT's model with the same one, and the judge."""
    j = judge.make(family)
    own_family, model = judge.ours(j.folder)
    adapter = new_adapter(model, own_family, "base", "mine", 3, 7, FAMILIES[family], seed=1, dropout=share, dora=dora)
    save_adapter(folder / "adapter", model, adapter)
    with judge.promoted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = peft.PeftModel.from_pretrained(copy.deepcopy(j.hf), folder / "adapter", is_trainable=True).double().eval()
    for name, m in other.named_modules():
        if hasattr(m, "lora_dropout") and "default" in m.lora_dropout:
            m.lora_dropout["default"] = Masks(name.removeprefix("base_model.model.")) if share else nn.Identity()
            m.train()  # of this layer alone: the model's own dropout stays off
    return TrainingRun(model, Causal(WORDS), documents("llama"), replace(S, clip=0.2), folder), other, j


def furthest(family: str, folder: Path, share: float, steps: int = STEPS, dora: bool = False) -> float:
    """Return how far the losses and the adapters of both are apart over some steps."""
    run, other, _ = both(family, folder, share, dora)
    named = [(n, p) for n, p in other.named_parameters() if p.requires_grad]
    decays = {True: S.weight_decay, False: 0.0}  # magnitudes are no matrices
    groups = [{"params": [p for _, p in named if (p.ndim > 1) == matrix], "weight_decay": decays[matrix]} for matrix in decays]
    step, feed, apart = torch.optim.AdamW(groups, betas=(S.beta1, S.beta2), eps=1e-8), batches(run.documents, run.s), 0.0
    for k in range(steps):
        numbers = next(feed)
        entry = run.one(numbers)
        for m in other.modules():
            if isinstance(m, Masks):
                m.step = k
        with judge.promoted():
            loss = theirs(other, run.objective.batch([run.documents[i] for i in numbers]))
        other.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([p for _, p in named], run.s.clip)
        for group in step.param_groups:
            group["lr"] = learning_rate(k, run.s)
        step.step()
        apart = max(apart, abs(entry["loss"] / float(loss.detach()) - 1), abs(entry["gradient"] / float(norm) - 1))
    for ours, its in (("lora_a.weight", "lora_A.default.weight"), ("magnitude", "lora_magnitude_vector.default.weight")):
        own = {p.data_ptr(): p for n, p in run.model.named_parameters() if n.endswith(ours)}.values()
        last = [p for n, p in named if n.endswith(its)]
        assert sum(p.numel() for p in own) == sum(p.numel() for p in last) and bool(last) == (dora or its.startswith("lora_A"))
        if last:
            own_total, total = (sum(float(p.detach().double().square().sum()) for p in each) for each in (own, last))
            apart = max(apart, abs(own_total / total - 1))
    return apart


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("share", [0.0, SHARE])
@pytest.mark.quick(2)
def test_twenty_steps_are_peft_s(family: str, share: float, tmp_path: Path) -> None:
    assert furthest(family, tmp_path, share) < 1e-9


@pytest.mark.parametrize("mutant", ["unscaled", "each step the same", "each path the same"])
@pytest.mark.quick(4)
def test_other_masks_are_another_curve(mutant: str, tmp_path: Path) -> None:
    real = dropout.mask
    wrong = {
        "unscaled": lambda x, share, seed: real(x, share, seed) * (1 - share),
        "each step the same": lambda x, share, seed: real(x, share, seed.split(":", 2)[0]),
        "each path the same": lambda x, share, seed: real(x, share, seed.rpartition(":")[0]),
    }[mutant]
    made = dropout.Dropout.drawn
    with swapped(dropout, "partial", lambda f, **how: partial(wrong, **how)):
        assert furthest("gpt2", tmp_path, SHARE, 3) > 1e-6
    assert dropout.Dropout.drawn is made


def test_a_mask_by_hand() -> None:
    """The share is 0 and the rest is larger, so that the mean stays; another seed is another mask."""
    x = torch.ones(400, 50, dtype=torch.float64)
    made = dropout.mask(x, SHARE, "1:0:0:a")
    assert set(made.flatten().tolist()) == {0.0, 1 / (1 - SHARE)} and abs(float(made.mean()) - 1) < 0.02
    assert abs(float((made == 0).double().mean()) - SHARE) < 0.02
    assert torch.equal(made, dropout.mask(x, SHARE, "1:0:0:a")) and not torch.equal(made, dropout.mask(x, SHARE, "1:0:1:a"))


@pytest.mark.parametrize("family", judge.FAMILIES)
@pytest.mark.quick(5)
def test_dropout_reaches_every_matrix_that_takes_it(family: str) -> None:
    """Each adapter of a model draws a mask in a forward; a matrix whose rows are never multiplied is refused by name."""
    own_family, model = judge.ours(judge.judge(family).folder)
    every = [n.removesuffix(".weight") for group in targeted(model, own_family, ["*"]).values() for n in group.ours]
    called = [n for n in every if not n.endswith(".kv_b")]
    if called != every:
        with pytest.raises(UseError, match=r"attn\.kv_b"):
            new_adapter(model, own_family, "base", "mine", 2, 4, every, dropout=SHARE)
    new_adapter(model, own_family, "base", "mine", 2, 4, called, dropout=SHARE)
    unseen = {name: m for name, m in model.named_modules() if isinstance(m, Addition)}
    assert unseen and all(m.dropout == SHARE for m in unseen.values())

    def reached(x: Tensor, name: str) -> Tensor:
        unseen.pop(name, None)
        return torch.ones_like(x)

    for name, m in unseen.items():
        m.drawn = partial(reached, name=name)
    model(*judge.prompts(family))
    assert not unseen


def test_a_matrix_that_dropout_misses_is_found() -> None:
    with swapped(Latent, "reads_matrix", ()), pytest.raises(BaseException, match="DID NOT RAISE"):
        test_dropout_reaches_every_matrix_that_takes_it("deepseek_v3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a chat template and chats."""
    place = tmp_path_factory.mktemp("dropout")
    shutil.move(run_recipe(recipe_of(place, steps="2"), place / "out", False, 1, silent), place / "base")
    (place / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    lines(place, "d.jsonl", chats())
    return place


def test_a_run_with_dropout(folder: Path, tmp_path: Path) -> None:
    """Watched, stopped and taken again it is the same; without a step nothing is dropped; a weight says why it moved."""
    adapter = f"{ADAPTER}\ndropout = 0.3"
    path = recipe(folder, adapter=adapter)
    made = run_recipe(path, tmp_path / "run", False, 1, silent)
    name = "adapter_model.safetensors"
    assert json.loads((made / "adapter_config.json").read_text())["lora_dropout"] == 0.3
    again = stopped_after_each_step(path, tmp_path / "out", 6)
    watched = run_recipe(recipe(folder, "w.toml", adapter=f"{adapter}\n[watch]\nevery = 2"), tmp_path / "watched", False, 1, silent)
    plain = run_recipe(recipe(folder, "p.toml"), tmp_path / "plain", False, 1, silent)
    assert (again / name).read_bytes() == (watched / name).read_bytes() == (made / name).read_bytes() != (plain / name).read_bytes()
    run = pellucid.Run(made.parent)
    assert [s.fault for s in verify_stretches(run, 3, 1)] == [None] * 3
    for part in ("a", "b"):
        moved_as_said(run, f"layers.0.attn.o.adapters.mine.lora_{part}.weight", (1, 1), 4)
    recorded = run.replay(4, only="layers.0.attn.o.adapters.mine.dropped")
    dropped = [s.value for s in recorded.all("layers.0.attn.o.adapters.mine.dropped")]
    assert dropped and all(0.1 < float((x == 0).float().mean()) < 0.5 for x in dropped)
    assert all(m.drawn is None for m in run.built[0].dropout.additions) and len(run.built[0].dropout.additions) == 4
    assert Replay(plain.parent).built[0].dropout.additions == []


def test_shares_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for share in ("1", "-0.1", "true", '"a"'):
        line = refused(recipe(folder, "bad.toml", adapter=f"{ADAPTER}\ndropout = {share}"), tmp_path / "run", capsys, ("zh", "en"))
        assert "adapter.dropout" in line
