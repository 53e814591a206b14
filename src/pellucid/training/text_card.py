"""The card of a model of texts: its loss and bits per byte on what was held out, and what it writes; all of the saved weights."""

import json
import math
from dataclasses import dataclass, field

from torch import nn

from pellucid.families.family import Family
from pellucid.messages import phrases
from pellucid.tokenizer.pieces import writing
from pellucid.training.card import modules_of
from pellucid.training.criterion import PLAIN, Criterion, Figures
from pellucid.training.objectives import IGNORED, Document
from pellucid.training.recipe import Recipe
from pellucid.training.recipe_tables import DistilSettings
from pellucid.training.text_objective import CausalText, TaughtText

SAMPLES = 3
PROMPT = 6  # tokens


@dataclass(frozen=True)
class TextScore:
    """What a model reaches on examples held out. loss: -log p per target, None if there are no examples.  size: bytes of the targets.

    figures, reached: of the criterion that was trained.
    """

    examples: int
    targets: int
    size: int
    loss: float | None
    samples: tuple[tuple[str, str], ...]
    figures: Figures = field(default_factory=dict)
    reached: str = PLAIN.reached

    @property
    def bits_per_byte(self) -> float | None:
        """Return the bits that the model needs for a byte of text; unlike a loss, it does not depend on the tokenizer."""
        return None if self.loss is None or not self.size else self.loss * self.targets / math.log(2) / self.size


def score_of_texts(recipe: Recipe, model: nn.Module, objective: CausalText, criterion: Criterion = PLAIN) -> TextScore:
    """Return the score of the recipe's model. Samples are greedy, from the first tokens of held-out examples, or of trained ones."""
    trained, out = objective.rows_of(recipe.train.seed)
    documents = list(out)
    sizes = byte_sizes(objective)
    targets = [i for d in documents for i in d.losses()[1:] if i != IGNORED]
    loss, figures = criterion.measure(model, objective, objective.groups(documents, recipe.train.batch)) if targets else (None, {})
    begun = documents or trained[:SAMPLES]
    few = begun[:: -(-len(begun) // SAMPLES)]
    if isinstance(objective, TaughtText):
        samples = [objective.answered(model, d) for d in few]
    else:
        samples = sampled(objective, model, few)
    return TextScore(len(documents), len(targets), sum(sizes[i] for i in targets), loss, tuple(samples), figures, criterion.reached)


def byte_sizes(objective: CausalText) -> dict[int, int]:
    """Return the bytes of text that each id stands for; the token that ends a document stands for none."""
    tokenizer = objective.tokenizer
    spoken = writing(json.loads(tokenizer.to_str())["decoder"], "tokenizer.json").spoken
    sizes = {i: len(spoken(piece, False)) for piece, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    return sizes | {objective.end: 0}


def sampled(objective: CausalText, model: nn.Module, documents: list[Document]) -> list[tuple[str, str]]:
    """Return the beginning of each document, and what the model writes after it."""
    first = min(PROMPT, objective.data.length // 2)
    prompts = [objective.tokenizer.decode(d.target[:first]).rstrip("\ufffd") for d in documents]
    prompts = [prompt for prompt in prompts if prompt]
    return list(zip(prompts, objective.complete(model)(prompts), strict=True)) if prompts else []


def text_card(recipe: Recipe, family: Family, model: nn.Module, objective: CausalText, score: TextScore) -> str:
    """Return the card as Markdown, in English and Chinese."""
    s, index, trained = recipe.train, objective.shards.index, objective.rows_of(recipe.train.seed)[0]
    parameters = list(model.parameters())
    facts = {
        "family": family.name,
        "parameters": f"{sum(p.numel() for p in parameters):,}",
        "trained": f"{sum(p.numel() for p in parameters if p.requires_grad):,}",
        "base": "" if recipe.base is None else recipe.base.name,
        "learnt": f"{trained.figures().get('learnt', 1):.1%}",
        "documents": f"{sum(index['documents'].values()):,}",
        "tokens": f"{len(objective.shards.tokens):,}",
        "ids": f"{objective.tokenizer.get_vocab_size():,}",
        "recipe": recipe.path.name,
        "steps": f"{s.steps:,}",
        "batch": s.batch,
        "length": objective.data.length,
        "pack": objective.data.pack,
        "idle": f"{trained.figures().get('idle', 0):.1%}",
        "seed": s.seed,
    }
    reached = {
        "examples": f"{score.examples:,}",
        "tokens": f"{score.targets:,}",
        "bytes": f"{score.size:,}",
        "loss": f"{score.loss or 0:.3f}",
        "bits": f"{score.bits_per_byte or 0:.3f}",
        "each": f"{score.size / max(score.targets, 1):.2f}",
        "pairs": f"{score.examples // 2:,}",
        **{name: f"{value:.3f}" for name, value in score.figures.items()},
    }
    files = "\n".join(f"- `{name}`, {index['documents'].get(name, 0):,}, sha256 `{sha}`" for name, sha in index["sources"].items())
    written = "\n\n".join(indented(f"{prompt} |{text}") for prompt, text in score.samples)
    parts = []
    for language in ("en", "zh"):
        say = phrases(language)
        measured = say["card.texts.all" if score.loss is None else score.reached].format(**reached)
        aim = recipe.aim
        body = [
            say["card.texts" if recipe.base is None else "card.tuned"].format(**facts) + modules_of(recipe, say),
            *([say["card.texts.teacher"].format(teacher=aim.teacher)] if isinstance(aim, DistilSettings) else []),
            say["card.texts.files"] + "\n\n" + files,
            measured,
            say["card.texts.samples"],
            written,
        ]
        parts.append(f"# {recipe.name}\n\n" + "\n\n".join(body))
    return "---\nlibrary_name: pellucid\n---\n" + "\n\n".join(parts) + "\n"


def indented(text: str) -> str:
    """Return a text as a block of code, in which nothing is Markdown."""
    return "\n".join("    " + line for line in text.splitlines())
