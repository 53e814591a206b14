"""The weights that a run changes, and what of them its forwards read.

float32     the model's own: read, differentiated and changed; float64 likewise
bfloat16    the model has them rounded, so that forward and backward compute in bfloat16; the optimizer changes float32 master
            weights by float32 moments (arXiv 1710.03740), and the model's are rounded from these after each step

With shards of data ranks the weights are FSDP2's, complete in either dtype while a block runs; the optimizer changes a rank's rows of
them, in float32 or wider, which are the master weights too.

bytes of a weight     itself  gradient  master  moments
float32                    4         4               8
bfloat16                   2         2       4       8       with several forwards a step, or ranks, gradients are added in float32: 4
either, over n shards    4/n       4/n             8/n       and the weights and gradients of the block that runs
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from pellucid.checkpoint.fill import targets
from pellucid.nn.transformer import cast
from pellucid.sharding import Sharding, plain
from pellucid.training.optimizers import AdamW
from pellucid.training.recipe import TrainSettings


class TrainedWeights:
    """The weights of a model whose own parameters are read, differentiated and changed. They are those that it has now.

    read: the parameters of the model.  own_weights: what the optimizer changes, by path.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.read, self.own_weights = model, list(model.parameters()), trained(model)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the optimizer changes."""
        return (p for _, p in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield them with their paths."""
        yield from self.own_weights.items()

    def own(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what the optimizer changes for a parameter of the model; the parameter itself if it does not train."""
        return parameter

    def changing(self) -> dict[str, Tensor]:
        """Return what a step can change, by path: the weights that train, and the buffers."""
        return changing(self.model)

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the step, by path."""
        return {path: p.grad for path, p in self.named_parameters() if p.grad is not None}

    def clear(self) -> None:
        """Drop all gradients."""
        for p in (*self.read, *self.parameters()):
            p.grad = None

    def sum_gradients(self, sharding: Sharding) -> None:
        """Add to each gradient those of the other ranks."""
        sharding.sum_gradients(dict(self.named_parameters()))

    def clip(self, sharding: Sharding, most: float) -> float:
        """Let the norm of all gradients be `most` at most. Returns the norm that they had."""
        return sharding.clip(self.model, most)

    def step(self, optimizer: AdamW) -> None:
        """Change the weights by the gradients."""
        optimizer.step()

    def publish(self) -> None:
        """Let the model read the weights that `changing` gives, after they were set."""

    def unrounded(self, model: nn.Module) -> None:
        """Give `model`, which is the run's or a copy of it, the weights as the optimizer has them."""


class OwnWeights(TrainedWeights):
    """Weights that the optimizer changes in place of a model's. own: by path.  model: as its forwards read it."""

    def __init__(self, model: nn.Module, own: dict[str, nn.Parameter]) -> None:
        super().__init__(model)
        self.own_weights = own
        self.of = {id(p): own[path] for path, p in trained(model).items()}

    def own(self, parameter: nn.Parameter) -> nn.Parameter:
        return self.of.get(id(parameter), parameter)

    def changing(self) -> dict[str, Tensor]:
        return {path: self.own_weights.get(path, t) for path, t in changing(self.model).items()}


class MasterWeights(OwnWeights):
    """The master weights of a model that is cast to `dtype` here. several: a step has several forwards, on one rank or on all."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, several: bool) -> None:
        self.masters = {path: nn.Parameter(p.data) for path, p in trained(model).items()}
        super().__init__(cast(model, dtype), self.masters)
        self.rounded = trained(model)
        self.factor, self.several = 1.0, several
        if several:
            for path, p in self.rounded.items():
                p.register_post_accumulate_grad_hook(partial(add_up, self.masters[path]))

    def gradients(self) -> dict[str, Tensor]:
        holders = self.masters if self.several else self.rounded
        return {path: p.grad for path, p in holders.items() if p.grad is not None}

    def clip(self, sharding: Sharding, most: float) -> float:
        """Keep the factor, which `step` multiplies by where a gradient is float32."""
        if sharding.ranks.sharing > 1:
            norm = sharding.norm(self.gradients())
        else:
            norms = [torch.linalg.vector_norm(g, dtype=self.masters[path].dtype) for path, g in self.gradients().items()]
            norm = torch.linalg.vector_norm(torch.stack(norms))
        self.factor = float((most / (norm + 1e-6)).clamp(max=1.0))  # as clip_grad_norm_
        return float(norm)

    @torch.no_grad()
    def step(self, optimizer: AdamW) -> None:
        """Change one weight at a time, so that one gradient at a time is widened."""
        gradients, groups = self.gradients(), optimizer.param_groups
        names = {id(master): path for path, master in self.masters.items()}
        try:
            for group in groups:
                for master in group["params"]:
                    if (gradient := gradients.pop(path := names[id(master)], None)) is None:
                        continue
                    master.grad = gradient.to(master.dtype).mul_(self.factor)
                    self.rounded[path].grad = gradient = None
                    optimizer.param_groups = [{**group, "params": [master]}]
                    optimizer.step()
                    master.grad = None
                    self.rounded[path].copy_(master)
        finally:
            optimizer.param_groups = groups

    @torch.no_grad()
    def publish(self) -> None:
        for path, p in self.rounded.items():
            p.copy_(self.masters[path])

    def unrounded(self, model: nn.Module) -> None:
        for path, p in trained(model).items():
            p.data = self.masters[path].detach().clone()


class ShardWeights(OwnWeights):
    """A rank's rows of the weights of a model that is shared out over data ranks, and what is complete on each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, {path: nn.Parameter(plain(p.detach())) if plain(p) is not p else p for path, p in trained(model).items()})

    def sum_gradients(self, sharding: Sharding) -> None:
        """Take the gradients of a rank's rows from the model, and add to the others those of the other ranks."""
        for path, p in trained(self.model).items():
            if (own := self.own_weights[path]) is not p:
                own.grad, p.grad = None if p.grad is None else plain(p.grad), None
        super().sum_gradients(sharding)

    def clip(self, sharding: Sharding, most: float) -> float:
        return sharding.scale(self.gradients(), most)


def add_up(master: nn.Parameter, p: Tensor) -> None:
    """Add the gradient of one forward to the master's, and drop it."""
    assert p.grad is not None
    if master.grad is None:
        master.grad = p.grad.to(master.dtype)
    else:
        master.grad += p.grad
    p.grad = None


def weights_of(model: nn.Module, s: TrainSettings, sharding: Sharding) -> TrainedWeights:
    """Return the weights of a run in the dtype of its settings; a model in another one, as tests have it, keeps that for "float32".

    sharding: of the model over ranks.
    """
    if sharding.rows:
        return ShardWeights(model)
    several = sharding.ranks.count > 1
    if not s.rounds:
        return TrainedWeights(model)
    return MasterWeights(model, getattr(torch, s.dtype), several or (s.micro is not None and s.micro < s.batch))


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that train, by path."""
    return {path: p for path, p in model.named_parameters() if p.requires_grad}


def changing(model: nn.Module) -> dict[str, Tensor]:
    """Return what a step can change, by path: the parameters that train, and the buffers."""
    return {path: t for path, t in targets(model).items() if not isinstance(t, nn.Parameter) or t.requires_grad}
