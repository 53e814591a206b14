"""Prompts to try: of a specimen questions that its corpus holds out and it answers, of another model a few in two languages."""

import json
from pathlib import Path

from pellucid.tokenizer.tokenizer import Tokenizer

BLANK = "___"
SAME = "pellucid/capitals-llama", "pellucid/capitals-deepseek", "pellucid/capitals-prefix"  # trained on the texts of pellucid/capitals
PROMPTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))
PROMPTS |= dict.fromkeys(SAME, PROMPTS["pellucid/capitals"])


def example(name: str, kind: str) -> str:
    """Return a prompt to try: the model's own, or that of its kind."""
    return PROMPTS.get(name, PROMPTS[kind])[0]


def examples(name: str, kind: str, tokenizer: Tokenizer) -> list[str]:
    """Return the prompts to try that the tokenizer can write; the first is `example`, whatever it loses."""
    first, *more = PROMPTS.get(name, PROMPTS[kind])
    return [first, *(text for text in more if writes(tokenizer, text.replace(BLANK, "")))]


def writes(tokenizer: Tokenizer, text: str) -> bool:
    """True if the tokenizer's ids of a text spell it again, but for spaces and capitals, which some tokenizers drop."""
    back = tokenizer.decode(tokenizer.encode(text, special=False))
    return "".join(back.split()).casefold() == "".join(text.split()).casefold()
