"""Why a weight moved in a step of training: its gradient as a sum over the tokens of documents, and the parts of AdamW's step.

one = why_moved(run, numbers, "layers.2.ffn.down.weight", (5, 17))     # of the step that `run` takes next, on these documents
one.tokens[0]                       # the row that counts most: document, position, id, x, δ and their product
one.total(), one.gradient         # the sum over all rows, and autograd's own gradient
one.move.gradient, one.move.momentum, one.move.decay
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.errors import UseError, nearest
from pellucid.ops import wide
from pellucid.training.balance import Balance, balance_of
from pellucid.training.criterion import PLAIN, Criterion, losses
from pellucid.training.dropout import Dropout
from pellucid.training.loop import TrainingRun
from pellucid.training.move import Move, adamw_move, clip_factor
from pellucid.training.objectives import Batch
from pellucid.training.schedule import learning_rate
from pellucid.watching.pulls import Use, uses
from pellucid.watching.records import Seen
from pellucid.watching.watch import watch


class TokenPull(NamedTuple):
    """One row's contribution to the gradient of a cell: its path, where its token stands, and x · δ.

    document: its number, or of its text in the batch where documents have none.  x, delta: the numbers of `Use`, one for each column.
    """

    path: str
    document: int
    position: int
    id: int
    x: tuple[float, ...]
    delta: tuple[float, ...]
    product: float


@dataclass(frozen=True)
class Why:
    """The gradient of one cell of a weight, row by row.

    uses: one for each tensor that was made with the weight, in each forward.  gradient: autograd's, of the loss, before it is clipped.
    norm: of all gradients together.  others: paths of records whose op reads the weight, but does not say how.
    documents: the numbers of the texts of each forward.  move: how far the step moves the weight, if there is a step.
    """

    path: str
    cell: tuple[int, ...]
    uses: list[Use]
    gradient: float
    norm: float
    others: tuple[str, ...] = ()
    documents: Sequence[Sequence[int]] | None = None
    move: Move | None = None

    def total(self) -> float:
        """Return the sum over all rows of all uses."""
        return sum(use.total() for use in self.uses)

    def by_path(self) -> dict[str, float]:
        """Return the sum of each tensor's rows: of tied weights, the embedding's and the head's."""
        sums: dict[str, float] = {}
        for use in self.uses:
            sums[use.path] = sums.get(use.path, 0.0) + use.total()
        return sums

    @property
    def rest(self) -> float:
        """Return the part of the gradient that comes from no row: 0 but for rounding, if the loss reads weights by ops alone."""
        return self.gradient - self.total()

    @property
    def tokens(self) -> list[TokenPull]:
        """Return every row's contribution, the largest first."""
        return sorted((row for use in self.uses for row in self.rows(use)), key=lambda row: -abs(row.product))

    def rows(self, use: Use) -> Iterator[TokenPull]:
        """Yield the contributions of one use's rows."""
        columns = (use.texts, use.positions, use.ids, use.x, use.delta, use.product)
        for text, position, id, x, delta, product in zip(*(c.tolist() for c in columns), strict=True):
            document = text if self.documents is None else self.documents[use.forward][text]
            yield TokenPull(use.path, document, position, id, tuple(x), tuple(delta), product)


def why_gradient(
    model: nn.Module,
    batches: list[Batch],
    path: str,
    cell: Sequence[int],
    criterion: Criterion = PLAIN,
    balance: Balance | None = None,
    documents: Sequence[Sequence[int]] | None = None,
    dropout: Dropout | None = None,
) -> Why:
    """Return why parameter `path` has its gradient at `cell`, of the loss of a step whose micro-batches are `batches`.

    Runs forward and backward, and changes no weight, gradient or count. balance: of routers with an auxiliary loss.  dropout: of the step.
    A UseError for a parameter or a cell that does not exist, or that does not train.
    """
    parameter, cell = trained(model, path), tuple(cell)
    if len(cell) != parameter.ndim or not all(-n <= i < n for i, n in zip(cell, parameter.shape, strict=True)):
        raise UseError("why.cell", path=path, cell=", ".join(map(str, cell)), shape=" × ".join(map(str, parameter.shape)))
    names = {name for name, p in model.named_parameters(remove_duplicate=False) if p is parameter}
    readers: list[Seen] = []
    others: dict[str, None] = {}

    def keep(seen: Seen) -> None:
        if seen.pulls is not None and seen.pulls.reading.depends(parameter):
            readers.append(seen)
        elif seen.pulls is None and seen.source == "executed" and names.intersection(seen.weights):
            others[seen.path] = None

    every = [p for p in model.parameters() if p.requires_grad]
    sums: list[Tensor | None] = [None] * len(every)
    with watch(model, grad=True, terms=True, inside="listed", to=keep):
        for part in losses(criterion, model, batches, balance or Balance(model, 0.0), dropout):
            new = torch.autograd.grad(part.differentiated, every, allow_unused=True)
            widened = [None if g is None else g.to(wide(g.dtype)) for g in new]
            sums = [b if a is None else a if b is None else a + b for a, b in zip(sums, widened, strict=True)]
    norm = float(nn.utils.get_total_norm([g for g in sums if g is not None]))
    own = next(g for p, g in zip(every, sums, strict=True) if p is parameter)
    gradient = 0.0 if own is None else float(own[cell])
    return Why(path, cell, uses(readers, parameter, cell), gradient, norm, tuple(others), documents)


def trained(model: nn.Module, path: str) -> nn.Parameter:
    """Return the parameter at `path`. A UseError if there is none, or it does not train."""
    known = dict(model.named_parameters(remove_duplicate=False))
    if path not in known:
        raise UseError("why.weight", path=path, near=nearest(path, known))
    if not known[path].requires_grad:
        raise UseError("why.frozen", path=path)
    return known[path]


def why_moved(run: TrainingRun, numbers: list[int], path: str, cell: Sequence[int]) -> Why:
    """Return why parameter `path` moves at `cell` in the step that `run` would take next on the documents `numbers`.

    The run is left as it is. After `run.one(numbers)` the cell has moved by `move.total()`.
    """
    s, parameter = run.s, run.weights.own(trained(run.model, path))
    group = next(g for g in run.optimizer.param_groups if any(p is parameter for p in g["params"]))
    if group.get("muon"):
        raise UseError("why.muon", path=path)
    balance = balance_of(run.model, s)
    documents = [run.criterion.texts(part) for part in run.parts(numbers)]
    with run.recompute.off():
        why = why_gradient(run.model, run.batches(numbers), path, cell, run.criterion, balance, documents, run.draws())
    state = run.optimizer.state.get(parameter) or {"step": 0, **dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.zeros_like(parameter))}
    move = adamw_move(
        float(parameter.detach()[why.cell]),
        why.gradient,
        float(state["exp_avg"][why.cell]),
        float(state["exp_avg_sq"][why.cell]),
        int(state["step"]),
        rate=learning_rate(run.step, s),
        betas=group["betas"],
        eps=group["eps"],
        decay=group["weight_decay"],
        clip=clip_factor(why.norm, s.clip),
    )
    return replace(why, move=move)
