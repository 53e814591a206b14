"""Training from Python: `train` makes a run, and `Run` opens one, finished or not.

run = pellucid.train("recipe.toml", out="run")
run.replay(137)["layers.0.attn.pattern"].grad
run.without(17).loss
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pellucid.api.model import Model
from pellucid.arguments import checked
from pellucid.errors import TokenizerError
from pellucid.nn.transformer import cast
from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pellucid.training import run_recipe
from pellucid.training.left_out import LeftOut, leave_out, named
from pellucid.training.pipeline import without_modules
from pellucid.training.recorded_step import RecordedStep
from pellucid.training.replay import Replay
from pellucid.training.run_folder import recipe_place


class Run(Replay):
    """A run of training, by its folder: what was logged, the states that are kept, and every step, taken again bit for bit.

    The corpus is encoded once, at the first call that needs it.
    """

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {len(self.log)} of {self.recipe.train.steps} steps, states {self.states})"

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The run's tokenizer."""
        return load_tokenizer(self.folder, self.built[0].model.config.vocab)

    def piece(self, id: int) -> str | None:
        """Return the text of a token's piece. None if no piece has this id."""
        try:
            return None if self.tokenizer is None or id < 0 else self.tokenizer.pieces([id])[0].text
        except TokenizerError:
            return None

    @checked
    def model(self, step: int | None = None, without: LeftOut | None = None) -> Model:
        """Return the model after a step, 0 for its first weights; by default after the last one that was logged.

        Steps after the newest kept state are taken again. The model is a copy, in float32; the finished one is in the folder `model`.
        without: what the method `without` has returned, whose model it is, in place of a step's.
        """
        step = max((entry["step"] for entry in self.log), default=0) if step is None else step
        run, (_, family, hf) = self.to(step) if without is None else without.run, self.built
        name = f"{self.recipe.name} at step {run.step}" + ("" if without is None else f" without {named(without.documents)}")
        with run.recompute.off():
            module = cast(copy.deepcopy(run.model).eval(), torch.float32)
        without_modules(module)
        run.weights.unrounded(module)
        fields = {"architectures": [family.architecture], **hf, "dtype": "float32"}
        model = Model(name, module, family, fields, self.tokenizer)
        if (adapter := self.beginning.adapter) is not None:
            model.adapters = {adapter.name: adapter}
        return model

    @checked
    def replay(self, step: int, only: str | Iterable[str] = "*", gradients: bool = True) -> RecordedStep:
        """Take a step again, from the newest kept state before it, and return it with every tensor and its gradient.

        only: paths to record, with `*`.  Each step on the way must have the loss and the gradient's norm of its log line, bit for bit; else
        a TrainError that names the step, what differs, and both values.
        """
        return self.record(step, only, gradients)

    @checked
    def without(
        self,
        documents: int | str | Iterable[int],
        since: int = 0,
        step: int | None = None,
        prompts: Sequence[str] | None = None,
    ) -> LeftOut:
        """Train again without documents, exactly, and return what that changes. Nothing is written: the result is another run, in memory.

        documents: numbers, as `why` gives them, or a text: all documents that have it.  since: they are left out of the steps after this
        one.  step: the step that both are compared after, by default the last.  prompts: by default those of the recipe's [watch].
        """
        return leave_out(self, documents, since, step, prompts)


@checked
def train(
    recipe: str | Path,
    out: str | Path | None = None,
    resume: bool = False,
    on: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Train a model by a recipe, and return its run. recipe: a TOML file, or the name of a run that ships.

    out: the run's folder, by default runs/<name>; the finished model is in its folder `model`.  resume: go on from the newest saved state.
    on: called with the log entry of each step.
    """
    path, silent = recipe_place(recipe), lambda entry: None
    folder = run_recipe(path, None if out is None else Path(out), resume, None, silent, on=on or silent).parent
    return Run(folder)
