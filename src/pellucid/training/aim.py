"""The criterion of a recipe: what its objective makes small."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from pellucid.checkpoint.opening import open_module
from pellucid.counting.sizes import judge_sizes
from pellucid.errors import TrainError
from pellucid.training.criterion import Criterion, CrossEntropy
from pellucid.training.distillation import Distillation
from pellucid.training.loop import check
from pellucid.training.multi_token_loss import MultiTokenLoss, require_targets
from pellucid.training.objectives import Document, Objective
from pellucid.training.own_check import OwnCheck
from pellucid.training.preference import Preference, refer
from pellucid.training.recipe import Recipe
from pellucid.training.recipe_tables import OWN, DistilSettings, PreferSettings, RewardSettings
from pellucid.training.reward import Reward, Rewards
from pellucid.training.shards import TOKENIZER, load_tokenizer
from pellucid.training.start import Start, folder_named, origin, stops, weights_digest
from pellucid.training.text_objective import PairedText, TaughtText
from pellucid.training.texts import Texts


def criterion_of(
    recipe: Recipe,
    start: Start,
    objective: Objective,
    documents: tuple[Sequence[Document], Sequence[Document]],
    folder: Path,
    rewards: Rewards | None = None,
) -> Criterion:
    """Return the criterion of a run. documents: trained and held out.  folder: where it keeps what it computes once.

    rewards: those of the log, for steps that are taken again.  The model of `start` is at its first weights.
    """
    aim = recipe.aim
    if isinstance(aim, PreferSettings):
        assert isinstance(objective, PairedText)
        base: str = origin(recipe, start)["base"]
        return Preference(aim, refer(objective, start.model, recipe.train.seed, base, folder))
    if isinstance(aim, RewardSettings):
        assert isinstance(objective, TaughtText)
        longest, most = objective.data.length + aim.new, start.model.config.positions
        if most is not None and longest > most:
            raise TrainError("reward.positions", path=recipe.path, found=longest, most=most)
        ends = frozenset([*stops(start), objective.end])
        own = OwnCheck(aim.check, recipe.path, recipe.root) if OWN.fullmatch(aim.check) else None
        if own is not None and rewards is None:
            own.called = own.load()  # what is wrong with the file is told before the first step
        return Reward(aim, objective, [*documents[0], *documents[1]], recipe.train.seed, ends, own, rewards)
    if isinstance(aim, DistilSettings):
        return Distillation(aim, *teacher_of(recipe, aim, objective, documents[0]))
    if recipe.multi_token is not None:
        longest = recipe.data.length if isinstance(recipe.data, Texts) else max(map(objective.rows, documents[0]))
        require_targets(recipe.multi_token, recipe.path, longest)
        return MultiTokenLoss(recipe.multi_token, recipe.train.smoothing)
    return CrossEntropy(recipe.train.smoothing)


def teacher_of(recipe: Recipe, aim: DistilSettings, objective: Objective, documents: Sequence[Document]) -> tuple[nn.Module, str]:
    """Return the teacher and the digest of its weights. A TrainError unless it reads the objective's ids, of documents as long."""
    path = folder_named(recipe, aim.teacher)
    got = open_module(path, judge_sizes, recipe.train.full)
    if type(got.module) is not objective.kind:
        raise TrainError("train.kind", path=recipe.path, found=got.hf.get("model_type"), objective=recipe.objective)
    own, file = objective.tokenizer.get_vocab(with_added_tokens=True), path / TOKENIZER
    if not file.is_file() or load_tokenizer(file).get_vocab(with_added_tokens=True) != own:
        raise TrainError("distil.tokenizer", path=recipe.path, teacher=aim.teacher)
    check(objective, documents, got.module.config.vocab, got.module.config.positions)
    return got.module, weights_digest(got.folder)
