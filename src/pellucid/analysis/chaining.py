"""A question of two steps, put at once and step by step: on which continent is the country with this capital?"""

from collections.abc import Sequence

from pellucid.analysis.quality import Quality, likeliest
from pellucid.api.model import Model
from pellucid.training.corpus import STOP, corpora, read

COUNTRY = "{name} is the capital of"
CONTINENT = "The continent of {name} is"
AT_ONCE = "The continent of the country whose capital is {name} is"
NEW = 12  # tokens of the longest country's name


def at_once(model: Model) -> Quality:
    """Ask for the continent of every capital in one form."""
    capitals, right = asking(model)
    return rightly(model, [AT_ONCE.format(name=name) for name in capitals], right)


def in_steps(model: Model, carry: bool = True) -> Quality:
    """Ask for the country of every capital, then for that country's continent. carry: False asks the second of the capital itself."""
    capitals, right = asking(model)
    first = answers(model, [COUNTRY.format(name=name) for name in capitals]) if carry else capitals
    return rightly(model, [CONTINENT.format(name=name) for name in first], right)


def asking(model: Model) -> tuple[list[str], list[int]]:
    """Return every capital, and the first token of its continent."""
    countries = read(corpora()["pellucid/capitals"]).countries.values()
    right = [model.tokenizer.encode(f" {one.named['continent']['en']}")[0] for one in countries]
    return [one.named["capital"]["en"] for one in countries], right


def answers(model: Model, prompts: Sequence[str]) -> list[str]:
    """Return the model's own words after each prompt, up to the end of the sentence."""
    rows = [model.ids(prompt) for prompt in prompts]
    starts, going = [len(row) for row in rows], list(range(len(rows)))
    for _ in range(NEW):
        for i, token in zip(going, likeliest(model, [rows[i] for i in going]), strict=True):
            rows[i].append(token)
        if not (going := [i for i in going if STOP["en"] not in model.tokenizer.decode(rows[i][-1:])]):
            break
    return [sentence(model.tokenizer.decode(row[start:])) for row, start in zip(rows, starts, strict=True)]


def sentence(text: str) -> str:
    """Return the first sentence of a text, without its stop."""
    return text.partition(STOP["en"])[0].strip()


def rightly(model: Model, prompts: Sequence[str], right: Sequence[int]) -> Quality:
    """Count the prompts after which the likeliest token is the right one."""
    return Quality(sum(a == b for a, b in zip(likeliest(model, [model.ids(p) for p in prompts]), right, strict=True)), len(right))
