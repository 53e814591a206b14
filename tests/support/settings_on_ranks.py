"""What the tests of several ranks run of other settings and objectives: bfloat16, recomputation, skipped steps, pairs and a teacher."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from billed_on_ranks import billed, sent_by
from pellucid.distributed import ALONE, Ranks, join, number
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.nn.transformer import cast
from pellucid.sharding import Sharding, split
from pellucid.training import not_finite
from pellucid.training.aim import criterion_of
from pellucid.training.criterion import CrossEntropy, Judged
from pellucid.training.distillation import Distillation
from pellucid.training.loop import TrainingRun, feed, moments_of
from pellucid.training.objectives import Batch
from pellucid.training.pipeline import examples, joined, prepare
from pellucid.training.recipe import read_recipe
from pellucid.training.saves import digest
from pellucid.training.start import fresh, origin
from rank_grids import FULL, GRIDS, OF_EXPERTS, PATIENCE, SHARDED, Measured, config
from tiny import far, ids, tiny
from trained_on_ranks import FAMILIES, STEPS, documents, run_of, taken, unshared

THREE = GRIDS[2][:3]  # data ranks, tensor ranks, expert ranks


class Poisoned(CrossEntropy):
    """A loss that is not finite for one document, and whose gradient is not finite for another one. It knows them by their last token."""

    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        judged = super().judge(model, batch, share)
        loss = judged.loss
        lasts = [[int(i) for i in row if i >= 0][-2:] for row in batch.targets]
        if documents()[7].target[-2:] in lasts:
            loss = loss * float("nan")
        if documents()[12].target[-2:] in lasts:
            loss = loss + (loss - loss.detach()).abs().sqrt()  # 0, and its gradient 0 / 0
        return judged._replace(loss=loss)


class Curve:
    """A run on some ranks: its log without times, and its weights at the end, of the complete model.

    At its first step a run that prefers has answers as likely as the first weights have them, so that rounding says which gained more.
    """

    def __init__(self, run: TrainingRun, steps: int = STEPS) -> None:
        self.log = [{k: v for k, v in e.items() if k not in ("seconds", "documents")} for e in taken(run, steps)]
        self.log[0].pop("accuracy", None)
        self.weights = {path: run.sharding.joined(path, t.detach()) for path, t in run.weights.changing().items()}

    def far(self, other: "Curve") -> float:
        """Return the largest difference of two runs, infinity if their logs have other fields or texts."""
        for a, b in zip(self.log, other.log, strict=True):
            if a.keys() != b.keys() or any(isinstance(a[k], str) and a[k] != b[k] for k in a):
                return float("inf")
        logs = [abs(a[k] - b[k]) for a, b in zip(self.log, other.log, strict=True) for k in a if not isinstance(a[k], str)]
        return max(*logs, *(far(t, other.weights[path]) for path, t in self.weights.items()))


def of_settings(root: Path, name: str, grids: Sequence[tuple[int, ...]] = (*THREE, SHARDED), steps: int = STEPS, **how: Any) -> Measured:
    """Compare a family of experts on each kind of ranks with one rank, with settings of its own."""
    out: Measured = {}
    alone = Curve(run_of(tiny(config("qwen3_moe")), root / f"{name}-alone-{number()}", **how), steps)
    for sizes in grids:
        ranks = join(*sizes, patience=PATIENCE)
        model = tiny(config("qwen3_moe"))
        run = run_of(model, root / f"{name}-{ranks}", split(model, ranks), **how)
        (run.folder / "log.jsonl").touch()
        curve = Curve(run, steps)
        out[str(ranks)] = {"far": alone.far(curve), "skipped": [e["step"] for e in curve.log if "skipped" in e]}
    return out


def muon(root: Path) -> Measured:
    """Compare Muon on each kind of ranks with one rank. mutants: how far off it is if each makes its own part of a matrix orthogonal."""
    out = of_settings(root, "muon", optimizer="muon")
    divides, Sharding.divides_matrices = Sharding.divides_matrices, lambda *of: False  # type: ignore[method-assign]
    mutants = of_settings(root, "parts", (THREE[1], SHARDED), optimizer="muon")
    Sharding.divides_matrices = divides  # type: ignore[method-assign]
    return out | {"mutants": [got["far"] for got in mutants.values()]}


def disagreeing() -> Measured:
    """Let one rank alone find a broken tensor, in the first of several forwards of a step: the ranks stop together, and go on."""
    own, out = not_finite.first_of, Measured()
    for sizes in (*THREE[1:], SHARDED):
        ranks = join(*sizes, patience=PATIENCE)
        model = tiny(config("qwen3_moe"))
        run = run_of(model, Path(os.devnull).parent, split(model, ranks), micro=1)
        numbers = next(feed(run.documents, run.s, 0))
        not_finite.first_of = lambda seen, gradient: (seen.seen[0], [0, 0]) if number() else None
        not_finite.first_broken(run, numbers, run.batches(numbers), gradient=False)
        not_finite.first_of = own
        out[str(ranks)] = taken(run, 1)[0]["loss"]
    return out


class Rounding(Ranks):
    """Ranks that add gradients as the forward has them, in bfloat16."""

    def sum_gradients(self, parameters: Any, group: Any) -> None:
        trained = [p for p in parameters if p.grad is not None]
        for p in trained:
            p.grad = self.add_up(p.grad.to(torch.bfloat16), group).to(p.grad.dtype)


def narrow(root: Path) -> Measured:
    """Train in bfloat16: data ranks beside the micro-batches of one rank, others beside float64; and a state from grid to grid."""
    out, before = Measured(), None
    for family, sizes in (("llama", THREE[0]), ("llama", THREE[1]), ("gpt_oss", THREE[2])):
        ranks, how = join(*sizes, patience=PATIENCE), {"batch": 4, "count": 20, "dtype": "bfloat16"}
        model = tiny(config(family), torch.float32)
        run = run_of(model, root / f"narrow-{ranks}", split(model, ranks), **how)
        gradients = first_gradients(run)
        single = run_of(tiny(config(family), torch.float32), root / f"narrow-alone-{number()}", micro=2, **how)
        exact = first_gradients(run_of(tiny(config(family)), root / f"wide-alone-{number()}", batch=4, count=20))
        own = first_gradients(single)
        out[f"{ranks} errors"] = [error(gradients, exact), error(own, exact)]
        if sizes == THREE[0]:
            ranks_of_data, of_data = ranks, Curve(run)
            out[f"{ranks} far"] = Curve(single).far(of_data)
        if family == "llama":
            (run.folder / "log.jsonl").touch()
            if before is not None:
                run.load(before, inexact=True)
            run.save()
            dist.barrier()
            before = run.folder / "saves" / f"{run.step:09d}"
            out[f"{ranks} state"] = digests(run) if number() == 0 else []
    model, of_shards = tiny(config("llama"), torch.float32), join(*SHARDED, patience=PATIENCE)
    out["shards far"] = of_data.far(Curve(run_of(model, root / "narrow-shards", split(model, of_shards, torch.bfloat16), **how)))
    model = tiny(config("llama"), torch.float32)
    mutant = replace(split(model, ranks_of_data), ranks=Rounding(**vars(ranks_of_data)))
    out["rounded far"] = of_data.far(Curve(run_of(model, root / "rounded", mutant, **how)))
    if number() == 0:
        assert before is not None
        run = run_of(tiny(config("llama"), torch.float32, seed=7), root / "narrow-alone-state", **how)
        (run.folder / "log.jsonl").touch()
        run.load(before, inexact=True)
        run.save()
        out["alone state"] = digests(run)
    dist.barrier()
    return out


def digests(run: TrainingRun) -> list[str]:
    """Return the digests of a run's saved weights and moments."""
    return [digest(run.folder / "saves" / f"{run.step:09d}" / f"{name}.safetensors") for name in ("weights", "moments")]


def first_gradients(run: TrainingRun) -> dict[str, Tensor]:
    """Return the gradients of a run's first step, of the complete model."""
    run.backward(next(feed(run.documents, run.s, 0)))
    return {path: run.sharding.joined(path, g.double()) for path, g in run.weights.gradients().items()}


def error(gradients: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Return the norm of what gradients differ by, over the norm of the exact ones."""
    pairs = [(gradients[path], g) for path, g in exact.items()]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)) ** 0.5


TRAINED = """
[data]
{data}
length = 32

[train]
seed = 1
steps = 5
batch = 3
learning_rate = 1e-3
clip = 0.05
"""
RECIPES = {
    "prefer": 'name = "p"\nobjective = "prefer"\n[model]\nfrom = "pellucid/twelve-countries"\n[prefer]\nbeta = 0.5\n'
    + TRAINED.format(data='files = ["pairs.jsonl"]'),
    "distil": 'name = "d"\nobjective = "distil"\n[model]\nmodel_type = "gpt2"\nn_embd = 16\nn_layer = 1\nn_head = 2\nn_positions = 64\n'
    '[distil]\nteacher = "pellucid/twelve-countries"\ntemperature = 2.0\n' + TRAINED.format(data='files = ["lines.txt"]'),
}


def write_data(root: Path) -> None:
    """Write pairs of answers and lines of text, and the recipes."""
    capitals = {
        "France": "Paris",
        "Spain": "Madrid",
        "Italy": "Rome",
        "Japan": "Tokyo",
        "Egypt": "Cairo",
        "Peru": "Lima",
        "Chile": "Santiago",
    }
    pairs = [{"prompt": f"The capital of {a} is", "chosen": f" {b}.", "rejected": f" not {b} at all."} for a, b in capitals.items()]
    (root / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (root / "lines.txt").write_text("\n\n".join(f"The capital of {a} is {b}." for a, b in capitals.items() for _ in range(4)))
    for name, text in RECIPES.items():
        (root / f"{name}.toml").write_text(text)


def aimed(root: Path, name: str, ranks: Ranks) -> TrainingRun:
    """Return the run of a recipe in float64 on these ranks."""
    recipe, folder = read_recipe(root / f"{name}.toml"), root / f"{name}-{ranks}-{number() if ranks is ALONE else 'shared'}"
    folder.mkdir(exist_ok=True)
    with ranks.in_turn():
        objective = prepare(recipe, folder)
        start, both = fresh(recipe, objective), examples(recipe, objective)
        cast(start.model, torch.float64)
        criterion = criterion_of(recipe, start, objective, both, folder / "data")
        if isinstance(criterion, Distillation):
            cast(criterion.teacher, torch.float64)
    shared = split(start.model, ranks)
    return TrainingRun(start.model, objective, both[0], recipe.train, folder, None, origin(recipe, start), criterion, shared)


def objectives(root: Path) -> Measured:
    """Compare preference and distillation on data and tensor ranks with one rank."""
    if number() == 0:
        write_data(root)
    out, ranks_of = Measured(), [join(*sizes, patience=PATIENCE) for sizes in (*THREE[:2], SHARDED)]
    dist.barrier()
    for name in RECIPES:
        alone = Curve(aimed(root, name, ALONE), 5)
        for ranks in ranks_of:
            curve = Curve(aimed(root, name, ranks), 5)
            out[f"{name} {ranks}"] = {
                "far": alone.far(curve),
                "gradient": min(e["gradient"] for e in curve.log),
                "log": sorted(curve.log[0]),
            }
    return out


def bills(root: Path) -> Measured:
    """Compare what `count` says of a rank with what it holds and sends, on each kind of ranks; of bfloat16 where weights are shared out.

    mutant: of ranks that share nothing of what attention reads.
    """
    out: Measured = {}
    for sizes in (*THREE, SHARDED):
        ranks = join(*sizes, patience=PATIENCE)
        few = ("qwen3_moe" if ranks.sharing > 1 else "gpt2", "deepseek_v3")
        for family in FAMILIES if FULL else few:
            if ranks.expert == 1 or family in OF_EXPERTS:
                out[f"{family} {ranks}"] = billed(family, ranks, root)
                if ranks.sharing > 1:
                    out[f"{family} {ranks} again"] = billed(family, ranks, root, recompute=True)
        if ranks.expert == 1:
            out[f"muon {ranks}"] = billed("deepseek_v3", ranks, root, optimizer="muon")
    tensor = join(*THREE[1], patience=PATIENCE)
    mutant = billed("llama", tensor, root, change=unshared(".attn"))["shared"]
    return out | {"bfloat16": billed("llama", ranks, root, "bfloat16")} | {"mutant": mutant}


def tables() -> Measured:
    """Compare the gradients of T5, whose blocks share tables of distances, with weights that are shared out and on one rank."""
    alone, shared = (tiny(config("t5")).requires_grad_(True) for _ in range(2))
    ranks, given = join(*SHARDED, patience=PATIENCE), (ids(4, 7, seed=1), ids(4, 11))
    sharding = split(shared, ranks)
    alone(*given).square().sum().backward()
    shared(*(x.chunk(2)[number()] for x in given)).square().sum().backward()
    trained = dict(shared.named_parameters())
    sharding.sum_gradients(trained)
    pairs = ((p.grad, sharding.joined(path, trained[path].grad)) for path, p in alone.named_parameters() if p.grad is not None)
    return {"far": max(far(one, other) for one, other in pairs), "complete": [path for path in trained if path not in sharding.rows]}


def adapters(root: Path) -> Measured:
    """Train an adapter of latent attention and experts, and one of matrices that share A, on ranks of a model or with its weights shared
    out, and on one; then join it.

    mutant: how far off it is if each rank trains its own A.
    """
    out, ranks_of = Measured(), [join(*sizes, patience=PATIENCE) for sizes in (*THREE[1:], SHARDED)]
    for name in ("pellucid/capitals-deepseek", "pellucid/twelve-countries"):
        text = f'name = "a"\n[model]\nfrom = "{name}"\n[adapter]\nrank = 2\n' + TRAINED.format(
            data='files = ["lines.txt"]\npack = "stream"'
        )
        if number() == 0:
            (root / "adapter.toml").write_text(text.replace("1e-3", "1e-2"))
        dist.barrier()
        recipe, alone = read_recipe(root / "adapter.toml"), aimed(root, "adapter", ALONE)
        curve, given = Curve(alone, 5), (ids(2, 9),)
        for ranks in ranks_of if name.endswith("deepseek") else (ranks_of[0], ranks_of[-1]):
            run = aimed(root, "adapter", ranks)
            got = {"far": curve.far(Curve(run, 5)), "gradient": curve.log[-1]["gradient"]}
            again = joined(recipe, fresh(recipe, run.objective)._replace(model=run.model), run).model
            with torch.no_grad():
                out[f"{name} {run.ranks}"] = got | {"joined": far(alone.model(*given), cast(again, torch.float64)(*given))}
        dist.barrier()
    mutant = aimed(root, "adapter", ranks_of[0])
    mutant.sharding = replace(mutant.sharding, partial=())
    return out | {"mutant": curve.far(Curve(mutant, 5))}


def adapter_bill(root: Path, optimizer: str) -> Measured:
    """Compare what `count` says of a data rank that trains an adapter with what it holds and sends in a step."""
    ranks, name = join(*THREE[0], patience=PATIENCE), f"billed-{optimizer}"
    if number() == 0:
        text = 'name = "a"\n[model]\nfrom = "pellucid/capitals-deepseek"\n[adapter]\nrank = 2\n[ranks]\ndata = 2\n'
        train = TRAINED.format(data='files = ["lines.txt"]\npack = "stream"') + f'optimizer = "{optimizer}"\n'
        (root / f"{name}.toml").write_text(text + train)
    dist.barrier()
    run = aimed(root, name, ranks)
    cast(run.model, torch.float32)
    with sent_by(ranks, run) as sent:
        taken(run, 1)
    trained = [*run.weights.parameters()]
    own = {
        "weights": sum(t.nbytes for t in (*run.model.parameters(), *run.model.buffers())) - sum(p.nbytes for p in trained),
        "adapters": sum(p.nbytes for p in trained),
        "gradients": sum(p.grad.nbytes for p in trained if p.grad is not None),
        "moments": sum(t.nbytes for t in moments_of(run).values() if t.ndim),
    }
    measured = own | dict(sent) | {"sent": sum(sent.values())}
    counts = {name: int(n) for name, n in recipe_bill(root / f"{name}.toml").rank().items()}
    return {name: [counts.get(name), measured.get(name)] for name in counts | measured}


def settings(root: Path) -> Measured:
    """Measure all of these."""
    skipping = {"on_nan": "skip", "skips": 3, "criterion": Poisoned()}
    return {
        "recompute": of_settings(root, "recompute", recompute=True, micro=2),
        "skip": of_settings(root, "skip", steps=10, micro=1, **skipping),
        "muon": muon(root),
        "disagreeing": disagreeing(),
        "first loss": taken(run_of(tiny(config("qwen3_moe")), root / f"first-{number()}", micro=1), 1)[0]["loss"],
        "narrow": narrow(root),
        "objectives": objectives(root),
        "bills": bills(root),
        "tables": tables(),
        "adapters": adapters(root),
        "adapter bill": {optimizer: adapter_bill(root, optimizer) for optimizer in ("adamw", "muon")},
    }
