"""What the tests of several ranks train: the same on each rank. The first one writes what was measured as JSON."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pellucid.checkpoint.fill import targets
from pellucid.distributed import ExpertRanks, Ranks, join, number, started
from pellucid.sharding import UNSPLIT, Sharding, split
from pellucid.training.loop import TrainingRun, feed, moments_of
from pellucid.training.objectives import Causal, Document
from rank_grids import FULL, GRIDS, OF_EXPERTS, PATIENCE, SHARDED, Measured, config
from tiny import far, tiny
from training import SETTINGS, WORDS

STEPS = 10 if FULL else 5
S = replace(SETTINGS, steps=10, batch=5, learning_rate=1e-2, weight_decay=0.3, clip=0.5, save_every=1000)
"""Steps with a clip that bites, of five documents, which no two ranks share evenly; the last batch of an epoch, the fifth, has three."""
ROUNDING = ".attn.k.bias"  # gpt2's: its gradient is rounding alone, which AdamW makes a step of
CALM = {"qwen3_next": 0.1}  # with weights of 0.3 a rounding grows a hundredfold in a step of its delta rule
FAMILIES = ("gpt2", "llama", "deepseek_v3", "qwen3_moe", "qwen3_next")
STATES = (("deepseek_v3", "adamw"), ("llama", "adamw"), ("deepseek_v3", "muon"))
OF_TENSORS = ("apertus",)  # whose feed-forward part has weights that every neuron uses
Curve = list[dict[str, Any]]
Change = Callable[[Any, Sharding], Sharding]


def documents() -> list[Document]:
    """Return 23 documents of 4 to 19 ids."""
    draw = torch.Generator().manual_seed(5)
    return [Document([], torch.randint(1, 97, (4 + i % 16,), generator=draw).tolist()) for i in range(23)]


def run_of(model: Any, folder: Path, sharding: Sharding = UNSPLIT, count: int = 23, **how: Any) -> TrainingRun:
    """Return a run of the first `count` documents. how: settings other than those of `S`, and a criterion."""
    folder.mkdir(parents=True, exist_ok=True)
    criterion, s = how.pop("criterion", None), replace(S, **how)
    return TrainingRun(model.requires_grad_(True), Causal(WORDS), documents()[:count], s, folder, criterion=criterion, sharding=sharding)


def taken(run: TrainingRun, steps: int = STEPS) -> Curve:
    """Take the first steps of a run, and return their log entries."""
    numbers = feed(run.documents, run.s, run.step)
    return [run.one(next(numbers)) for _ in range(steps)]


def trained(family: str, ranks: Ranks, root: Path, steps: int = STEPS, change: Change | None = None, seed: int = S.seed) -> Measured:
    """Train a model on these ranks, and compare it with one rank's; the first rank does. change: makes a mutant of the split model.

    seed: of the order of documents.
    """
    model = tiny(config(family), std=CALM.get(family, 0.3))
    sharding = split(model, ranks)
    if change is not None:
        sharding = change(model, sharding)
    run = run_of(model, root / "shared", sharding, seed=seed)
    run.backward(next(feed(run.documents, run.s, 0)))
    gradients = {path: sharding.joined(path, gradient) for path, gradient in run.weights.gradients().items()}
    curve = taken(run, steps)
    weights = {path: sharding.joined(path, t.detach()) for path, t in targets(model).items()}
    if number():
        return {}
    one = alone(family, root.parent)
    pairs = list(zip(one.curve, curve, strict=False))
    return {
        "gradients": max(missed(gradient, gradients.get(path)) for path, gradient in one.gradients.items()),
        "loss": max(abs(a["loss"] - b["loss"]) for a, b in pairs),
        "gradient": max(abs(a["gradient"] - b["gradient"]) / a["gradient"] for a, b in pairs),
        "tokens": max(abs(a["tokens"] - b["tokens"]) for a, b in pairs),
        "weights": max(far(t, weights[path]) for path, t in one.weights.items() if not path.endswith(ROUNDING)) if steps == STEPS else 0.0,
    }


class Alone(NamedTuple):
    """What one rank gives: the gradients of its first step, without a clip, the log, and the weights after it."""

    gradients: dict[str, Tensor | None]
    curve: Curve
    weights: dict[str, Tensor]


@cache
def alone(family: str, root: Path) -> Alone:
    """Train a model on one rank."""
    model = tiny(config(family), std=CALM.get(family, 0.3))
    run = run_of(model, root / f"alone-{family}")
    run.backward(next(feed(run.documents, S, 0)))
    gradients = {path: None if p.grad is None else p.grad.clone() for path, p in model.named_parameters()}
    return Alone(gradients, taken(run), {path: t.detach() for path, t in targets(model).items()})


def missed(one: Tensor | None, other: Tensor | None) -> float:
    """Return how far two gradients are from each other; infinity if only one of them is there."""
    return float("inf") if (one is None) != (other is None) else 0.0 if one is None or other is None else far(one, other)


def states(root: Path) -> Measured:
    """Save a state on 2 x 2 ranks, load it on 4 data ranks, save it there, and load that alone: the same bytes each time.

    Between the two also on 4 data ranks of two shards; of experts on 2 data x 2 expert ranks, and on 2 shards x 2 tensor ranks.
    """
    out: Measured = {}
    for family, optimizer in STATES:
        grids, before = ((2, 2, 1), *[(2, 1, 2), (2, 2, 1, 2)] * (family == "deepseek_v3"), (4, 1, 1, 2), (4, 1, 1)), None
        names = ["x".join(map(str, sizes)) for sizes in grids]
        for name, sizes in zip(names, grids, strict=True):
            ranks = join(*sizes, patience=PATIENCE)
            model = tiny(config(family), seed=0 if before is None else 7)
            run = run_of(model, root / f"{family}-{optimizer}-{name}", split(model, ranks), optimizer=optimizer)
            if before is None:
                taken(run, 3)
            else:
                run.load(before, inexact=True)
            (run.folder / "log.jsonl").touch()
            run.save()
            dist.barrier()
            before = run.folder / "saves" / f"{run.step:09d}"
        if number() == 0:
            model = tiny(config(family), seed=7)
            run = run_of(model, root / f"{family}-{optimizer}-alone", optimizer=optimizer)
            (run.folder / "log.jsonl").touch()
            out[f"{family} {optimizer} says"] = run.load(before, inexact=True)
            run.save()
            folders = [root / f"{family}-{optimizer}-{name}" / "saves" / "000000003" for name in (*names, "alone")]
            for file in ("weights.safetensors", "moments.safetensors"):
                out[f"{family} {optimizer} {file}"] = len({(folder / file).read_bytes() for folder in folders})
            out[f"{family} {optimizer} goes on"] = taken(run, 1)[0]["step"]
        dist.barrier()
    return out


def resumed(root: Path) -> Measured:
    """Take six steps in float32, and the last three of them once more from a state; count the tensors that differ by a bit."""
    out: Measured = {}
    for sizes in (*GRIDS[2][:3], SHARDED):
        ranks, ends = join(*sizes, patience=PATIENCE), list[dict[str, Tensor]]()
        for again in (False, True):
            model = tiny(config("deepseek_v3"), torch.float32, seed=3 if again else 0)
            run = run_of(model, root / f"resumed-{'x'.join(map(str, sizes))}", split(model, ranks))
            (run.folder / "log.jsonl").touch()
            if again:
                run.load(run.folder / "saves" / "000000003")
            else:
                taken(run, 3)
                run.save()
            dist.barrier()
            taken(run, 3)
            ends.append({path: t.detach() for path, t in run.weights.changing().items()} | moments_of(run))
        out[str(ranks)] = [path for path, t in ends[0].items() if not torch.equal(t, ends[1][path])]
    return {"resumed": out}


def averaged(model: Any, sharding: Sharding) -> Sharding:
    """Make the mutant whose shards take the mean of their gradients."""
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(2.0)
    return sharding


class OwnNorm(Ranks):
    """Data ranks whose clip sees the squares of their own rows alone."""

    def add_up(self, x: Tensor, group: Any) -> Tensor:
        return x if group is self.shard_group and x.dtype == torch.float64 else super().add_up(x, group)


class Unshared(Ranks):
    """Ranks that do not sum the gradients of what each of them used for its own heads."""

    def shared(self, x: Tensor) -> Tensor:
        return x


class Averaging(Ranks):
    """Ranks that take the mean of their gradients."""

    def sum_gradients(self, parameters: Any, group: Any) -> None:
        trained = list(parameters)
        super().sum_gradients(trained, group)
        for p in trained:
            p.grad = None if p.grad is None else p.grad / 2


class OwnCounts(Ranks):
    """Data ranks that divide by their own documents' targets."""

    def totals(self, numbers: Any) -> list[float]:
        return list(numbers) if len(numbers) == 2 and numbers[0] == int(numbers[0]) else super().totals(numbers)


class UnsharedExperts(ExpertRanks):
    """Ranks that do not sum the gradients of what each of them used for its own experts."""

    def shared(self, x: Tensor) -> Tensor:
        return x


class SharedBias(ExpertRanks):
    """Ranks that take the bias of a complete expert for one that all of them add."""

    def even(self, x: Tensor) -> Tensor:
        return x / self.sharing


class OtherRows(ExpertRanks):
    """Ranks that run another rank's rows on their experts."""

    def own_rows(self, order: Tensor, token: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        other = ExpertRanks(**vars(self) | {"model_rank": (self.model_rank + 1) % self.sharing})
        return other.own_rows(order, token, ends)


def of_experts(kind: type[ExpertRanks]) -> Change:
    """Return the mutant whose mixtures are on ranks of this kind."""

    def change(model: Any, sharding: Sharding) -> Sharding:
        for module in model.modules():
            if isinstance(vars(module).get("ranks"), ExpertRanks):
                module.ranks = kind(**vars(module.ranks))
        return sharding

    return change


def unshared(part: str) -> Change:
    """Return the mutant whose parts of this name do not share what they read."""

    def change(model: Any, sharding: Sharding) -> Sharding:
        for path, module in model.named_modules():
            if path.endswith(part) and "ranks" in vars(module):
                module.ranks = Unshared(**vars(module.ranks))
        return sharding

    return change


def other_ranks(kind: type[Ranks]) -> Change:
    """Return the mutant whose run is on ranks of this kind."""
    return lambda model, sharding: replace(sharding, ranks=kind(**vars(sharding.ranks)))


def mutants(root: Path) -> Measured:
    """Measure what each mutant gets wrong, in three steps."""
    data, tensor, expert, shard = (join(*sizes, patience=PATIENCE) for sizes in (*GRIDS[2][:3], SHARDED))
    made: dict[str, tuple[str, Ranks, Change | None]] = {
        "none": ("deepseek_v3", tensor, None),
        "latent attention shares nothing": ("deepseek_v3", tensor, unshared(".attn")),
        "experts share nothing": ("deepseek_v3", tensor, unshared(".ffn")),
        "the vocabulary shares nothing": ("llama", tensor, unshared("head")),
        "a norm of each head is trained alone": ("qwen3_moe", tensor, lambda _, sharding: replace(sharding, partial=())),
        "gradients are averaged": ("llama", data, other_ranks(Averaging)),
        "a rank divides by its own targets": ("llama", data, other_ranks(OwnCounts)),
        "a split weight's norm is one rank's": ("llama", tensor, other_ranks(Unnormed)),
        "complete experts share nothing": ("qwen3_moe", expert, of_experts(UnsharedExperts)),
        "an expert's bias is added in part": ("gpt_oss", expert, of_experts(SharedBias)),
        "experts run other experts' rows": ("qwen3_moe", expert, of_experts(OtherRows)),
        "the norm of experts is one rank's": ("qwen3_moe", expert, other_ranks(Unnormed)),
        "shards are averaged": ("llama", shard, averaged),
        "the norm of rows is one rank's": ("llama", shard, other_ranks(OwnNorm)),
    }
    own = {"a rank draws by a seed of its own": trained("llama", data, root / "seeds", 3, seed=S.seed + number())}
    return own | {name: trained(family, ranks, root / name, 3, change) for name, (family, ranks, change) in made.items()}


class Unnormed(Ranks):
    """Tensor ranks whose clip sees the squares of their own part alone."""

    def add_up(self, x: Tensor, group: Any) -> Tensor:
        return x if x.shape == (1,) and x.dtype == torch.float64 else super().add_up(x, group)


FEW = {
    (2, 1, 1, 1): ("gpt2", "qwen3_next"),
    (1, 2, 1, 1): (*FAMILIES, *OF_TENSORS),
    (1, 1, 2, 1): OF_EXPERTS,
    (2, 1, 1, 2): ("gpt2", "qwen3_next"),
    (2, 2, 1, 1): ("qwen3_moe",),
}
"""The families that a grid trains but for a full run: each where the model is split, two where its copies are. Other grids: one family."""


def families_of(data: int, tensor: int, expert: int, shard: int = 1) -> tuple[str, ...]:
    """Return the families that a grid trains."""
    if FULL:
        return OF_EXPERTS if expert > 1 else (*FAMILIES, *OF_TENSORS) if (data, tensor) == (1, 2) else FAMILIES
    return FEW.get((data, tensor, expert, shard), ("deepseek_v3",))


def grids(root: Path) -> Measured:
    """Compare one rank with every grid of the started processes, for a family of each kind of part."""
    out: Measured = {}
    for sizes in GRIDS[started()]:
        ranks = join(*sizes, patience=PATIENCE)
        for family in families_of(*sizes):
            out[f"{family} {ranks}"] = trained(family, ranks, root / f"{family}-{'x'.join(map(str, sizes))}")
    return out | (states(root) if started() == 4 else mutants(root) | resumed(root))
