"""A model with new weights, drawn as at the start of training."""

from pellucid.api.model import Model, make
from pellucid.training.loop import initialise
from pellucid.training.recipe import TrainSettings


def redrawn(model: Model, seed: int) -> Model:
    """Return a model of the same configuration and tokenizer, with weights drawn by `seed` as the first ones of a run of training."""
    new = make(model.hf, f"{model.name} (seed {seed})", str(model.device), model.dtype)
    initialise(new.module, len(new.config.layers), TrainSettings.spread, seed)
    drawn = Model(new.name, new.module, new.family, new.hf, model._tokenizer)
    drawn.files, drawn.generation = model.files, model.generation
    return drawn
