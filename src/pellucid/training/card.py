"""The model card: the model, its training, and its accuracy on held-out forms, next to two baselines without a language model."""

from collections.abc import Mapping, Sequence

from torch import nn

from pellucid.families.family import Family
from pellucid.messages import phrases
from pellucid.training.invented import Invented
from pellucid.training.objectives import Objective
from pellucid.training.quiz import Score
from pellucid.training.recipe import Recipe
from pellucid.training.recipe_tables import DistilSettings

TITLES = ("card.language", "card.asked", "card.accuracy", "card.chance", "card.bag")


def modules_of(recipe: Recipe, say: Mapping[str, str]) -> str:
    """Return the paragraph of a card that says which modules trained with the model; "" for none. say: the phrases of a language."""
    return "" if recipe.multi_token is None else "\n\n" + say["card.multi_token"].format(**vars(recipe.multi_token))


def card(recipe: Recipe, family: Family, model: nn.Module, objective: Objective, scores: Sequence[Score]) -> str:
    """Return the card as Markdown, in English and Chinese; every figure is of the saved weights."""
    s, count = recipe.train, sum(p.numel() for p in model.parameters())
    facts = {
        "family": family.name,
        "parameters": f"{count:,}",
        "steps": f"{s.steps:,}",
        "batch": s.batch,
        "seed": s.seed,
        "recipe": recipe.path.name,
    }
    rows = [
        f"| {r.relation} | {r.language} | {r.questions:,} | {r.accuracy:.2%} | {r.chance:.2%} | {r.bag_of_words:.2%} |"
        for r in sorted(scores, key=lambda r: (r.relation, r.language))
    ]
    made, first, measured = ("card.made", "card.relation", objective.measured)
    if isinstance(recipe.aim, DistilSettings):
        made, facts = "card.distilled", facts | {"teacher": recipe.aim.teacher}
    if isinstance(recipe.data, Invented):
        made, first, measured = "card.invented", "card.facts", "card.read"
    head = "---\nlicense: apache-2.0\nlanguage: [en, zh]\nlibrary_name: pellucid\n---\n"
    parts = []
    for language in ("en", "zh"):
        say = phrases(language)
        titles = " | ".join(say[key] for key in (first, *TITLES))
        table = "\n".join([f"| {titles} |", "|---|---|---:|---:|---:|---:|", *rows])
        parts.append(f"# {recipe.name}\n\n" + say[made].format(**facts) + modules_of(recipe, say) + "\n\n" + say[measured] + "\n\n" + table)
    return head + "\n\n".join(parts) + "\n"
