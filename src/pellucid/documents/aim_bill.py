"""What a recipe's objective takes beside the step of its own model: a preference, a reward or a teacher."""

from pellucid.api.count import billed
from pellucid.config import Config
from pellucid.counting import Bill
from pellucid.counting.training_extra import NOTHING, Extra, of_draws, of_reference, of_teacher
from pellucid.counting.training_memory import forward_bytes
from pellucid.engine.generation import ROWS
from pellucid.engine.memory import in_pages
from pellucid.errors import TrainError
from pellucid.nn.transformer import build
from pellucid.training.criterion import LOGPROB_TABLES
from pellucid.training.distillation import tables
from pellucid.training.preference import TOGETHER
from pellucid.training.recipe import Recipe
from pellucid.training.recipe_tables import DistilSettings, PreferSettings, RewardSettings
from pellucid.training.start import described, folder_named
from pellucid.training.texts import Texts
from pellucid.watching.meta import META


def longest_text(recipe: Recipe, data: Texts, cfg: Config) -> int:
    """Return the most tokens of a text: a row's, or a prompt's as long and its answer's but the last one, which nothing follows."""
    if not isinstance(recipe.aim, RewardSettings):
        return data.length
    longest = data.length + recipe.aim.new
    if cfg.positions is not None and longest > cfg.positions:
        raise TrainError("reward.positions", path=recipe.path, found=longest, most=cfg.positions)
    return longest - 1


def extra_of(recipe: Recipe, bill: Bill) -> Extra:
    """Return what the recipe's objective, and its [multi_token], take beside the step that `bill` counts one forward of."""
    aim, s, full = recipe.aim, bill.setting, recipe.train.full  # full: of a teacher, and of first weights
    data = recipe.data
    packed = isinstance(data, Texts) and data.pack == "documents"
    if recipe.multi_token is not None:
        return Extra(modules=recipe.multi_token.depth)
    if isinstance(aim, DistilSettings):
        family, cfg = described(folder_named(recipe, aim.teacher))
        teacher = billed(cfg, family.name, aim.teacher, s.context, s.batch, full, full, plain=full)
        return of_teacher(tables(aim, min(cfg.vocab, bill.config.vocab)), teacher, forward_bytes(teacher, packed))
    if isinstance(aim, PreferSettings):
        first = billed(bill.config, bill.family, bill.model, s.context, TOGETHER, s.weights, full, plain=full)
        return of_reference(LOGPROB_TABLES, first, forward_bytes(first, True))
    if isinstance(aim, RewardSettings):
        assert isinstance(data, Texts)
        prompts, every, answers = s.batch // aim.group, recipe.train.batch, recipe.train.batch * aim.group

        def counted(context: int, batch: int) -> Bill:
            return billed(bill.config, bill.family, bill.model, context, batch, s.weights, s.activations, plain=s.activations)

        with META:
            rows = in_pages(build(bill.config), data.length + aim.new) * answers
        together = max(1, min(every, ROWS // data.length))
        passed = forward_bytes(counted(min(data.length, ROWS), together), True, logits=False)
        written = counted(data.length + (aim.new - 1) // 2, s.batch)
        return of_draws(LOGPROB_TABLES, counted(data.length, prompts), written, aim.new, rows, answers, passed)
    return NOTHING
