"""A module that predicts the token after the next: a folder's own, or one trained beside a model that stays, on shipped sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from pellucid.analysis.lens import leaving
from pellucid.analysis.small_training import TEXTS, shipped_documents
from pellucid.api.count import described
from pellucid.api.model import Model
from pellucid.batch.step import Step
from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.gguf.gguf_folder import folder_of
from pellucid.checkpoint.multi_token_files import count_of, read_modules
from pellucid.checkpoint.opening import place
from pellucid.errors import PellucidError
from pellucid.nn.multi_token import MultiTokenPrediction, stands_alone
from pellucid.nn.transformer import cast
from pellucid.ops.sampling.stages import logprobs
from pellucid.tracing import watch
from pellucid.training.loop import batches, initialise
from pellucid.training.objectives import IGNORED, stacked
from pellucid.training.optimizers import optimizer
from pellucid.training.recipe import TrainSettings
from pellucid.training.schedule import learning_rate
from pellucid.watching.meta import META

HELD_OUT, BATCH, RATE, SPREAD, SEED = 128, 16, 1e-2, 0.02, 0


@dataclass(frozen=True)
class Measured:
    """Losses over held-out sentences, in nats, all of the same tokens: the third of each sentence, and on.

    following: the model's own, one token ahead.  second: the module's, two ahead.  mistaken: the module's, fed the token of the row itself.
    agreed, of: guesses of the module that the model itself makes a step later, and all.  even: of a model that thinks all tokens alike.
    """

    following: float
    second: float
    mistaken: float
    agreed: int
    of: int
    even: float

    @property
    def able(self) -> bool:
        """True if the model itself knows such sentences: its loss is below that of a model that thinks all tokens alike."""
        return self.following < self.even

    @property
    def share(self) -> float:
        """Return the share of the guesses that the model itself makes."""
        return self.agreed / self.of


@dataclass(frozen=True)
class Guess:
    """One row of a text. token: read there.  following: the model's guess of the next.  fed: the next, which the module gets.

    second: the module's guess of the one after.  actual: the one after.
    """

    token: int
    following: int
    fed: int
    second: int
    actual: int


class TwoAhead:
    """A model with a module that predicts two tokens ahead. losses: of each step of the module's training, if it is trained here.

    module: one that was trained with the model; None for a new one.
    """

    def __init__(self, model: Model, module: nn.Module | None = None) -> None:
        self.model, self.losses = model, list[float]()
        self.module = cast(MultiTokenPrediction(model.config) if module is None else module, model.dtype).to(model.device)
        if module is None:
            initialise(self.module, 1, SPREAD, SEED)

    @property
    def parameters(self) -> int:
        """Return the number of the module's own parameters."""
        return own_parameters(self.module)

    def train(self, steps: int) -> None:
        """Train the module for `steps` steps; the model's weights stay."""
        documents, s = shipped_documents(self.model, TEXTS), TrainSettings(SEED, steps, BATCH, RATE, warmup=5)
        moves = optimizer(self.module, s)
        for step, numbers in enumerate(islice(batches(documents, s), steps)):
            for group in moves.param_groups:
                group["lr"] = learning_rate(step, s)
            targets = stacked([documents[i].target for i in numbers]).to(self.model.device)
            moves.zero_grad(set_to_none=True)
            with torch.enable_grad():
                loss = self.loss(targets, self.following(targets))
            loss.backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), s.clip)
            moves.step()
            self.losses.append(float(loss.detach()))

    def following(self, targets: Tensor) -> Tensor:
        """Return the token after each row of targets [B T]: [B T - 2]."""
        return targets[:, 1:-1].clamp(min=0)

    def own(self, targets: Tensor) -> Tensor:
        """Return the token of each row: the wrong one to feed."""
        return targets[:, :-2].clamp(min=0)

    def loss(self, targets: Tensor, fed: Tensor) -> Tensor:
        """Return the mean loss of the module for the tokens two ahead. targets [B T], IGNORED where a text has ended."""
        return nn.functional.cross_entropy(self.logits(targets, fed).flatten(0, 1), targets[:, 2:].flatten(), ignore_index=IGNORED)

    def logits(self, targets: Tensor, fed: Tensor) -> Tensor:
        """Return the module's logits [B T-2 V] for the tokens two ahead."""
        tokens = self.own(targets)
        return self.module(self.model.module, self.rows(tokens), fed, Step.plain(tokens))[1]  # type: ignore[no-any-return]

    def rows(self, tokens: Tensor) -> Tensor:
        """Return the model's last rows, behind its last norm [B T D]."""
        path = "norm" if self.model.config.final_norm else leaving(self.model.module)[-1]
        with torch.no_grad(), watch(self.model, only=path) as seen:
            self.model(tokens, rows=-1)
        return seen[path].value  # type: ignore[no-any-return]

    def measured(self, fed_right: bool = True) -> Measured:
        """Measure the losses on held-out sentences. fed_right: False feeds the row's own token where the next belongs."""
        targets = stacked([one.target for one in shipped_documents(self.model, HELD_OUT, True)]).to(self.model.device)
        real = targets[:, 2:] != IGNORED
        plain = self.model(targets[:, :-1].clamp(min=0))[:, 1:]
        fed = self.following(targets) if fed_right else self.own(targets)
        guesses, wrong = (self.logits(targets, tokens) for tokens in (fed, self.own(targets)))
        one, two, three = (mean_loss(logits[real], targets[:, 2:][real]) for logits in (plain, guesses, wrong))
        agreed = (guesses.argmax(-1) == plain.argmax(-1))[real]
        return Measured(one, two, three, int(agreed.sum()), agreed.numel(), math.log(plain.shape[-1]))

    def guesses(self, ids: Sequence[int], fed_right: bool = True) -> list[Guess]:
        """Return each row's guesses for a text of at least three tokens."""
        targets = torch.tensor([list(ids)], device=self.model.device)
        fed = self.following(targets) if fed_right else self.own(targets)
        one = self.model(self.own(targets))[0].argmax(-1).tolist()
        two = self.logits(targets, fed)[0].argmax(-1).tolist()
        return [Guess(*row) for row in zip(ids, one, fed[0].tolist(), two, ids[2:], strict=False)]


def stored_module(model: Model) -> nn.Module | None:
    """Return the first module for multi-token prediction of the folder that a model was loaded from; None if that has none."""
    try:
        folder = folder_of(place(model.name), ())
    except PellucidError:  # a model that was made here
        return None
    if not isinstance(folder, Folder) or not stands_alone(model.config) or not count_of(folder, model.family, model.config):
        return None
    return read_modules(folder, model.family, model.config, 1, model.dtype)[0].requires_grad_(False)


def mean_loss(logits: Tensor, targets: Tensor) -> float:
    """Return the mean loss of rows of logits [N V] for their targets."""
    return float(-logprobs(logits).gather(-1, targets[:, None]).mean())


def own_parameters(module: nn.Module) -> int:
    """Return the number of a module's parameters."""
    return sum(p.numel() for p in module.parameters())


def of_catalogue(name: str) -> int:
    """Return the parameters of one such module beside a model of the catalogue, which are not among the model's."""
    with META:
        return own_parameters(MultiTokenPrediction(described(name)[1]))
