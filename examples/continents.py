"""Prompts about continents with the right answer and a wrong one: what the specimen says itself, or else its likeliest wrong continent.

python examples/continents.py    writes recipes/chats/continents.jsonl

The prompts are of forms that the specimen was never trained on.
"""

import json
from hashlib import sha256
from pathlib import Path

import torch

import pellucid
from pellucid.training.corpus import CORPORA
from pellucid.training.quiz import Question, questions

FILE = Path(__file__).parents[1] / "recipes" / "chats" / "continents.jsonl"
LINES = 720


def prompts(most: int = LINES) -> list[Question]:
    """Return questions for a continent in English, in an order that depends on each alone."""
    every = [q for q in questions(CORPORA / "capitals") if (q.relation, q.language) == ("continent", "en")]
    return sorted(every, key=lambda q: sha256(q.prompt.encode()).hexdigest())[:most]


def lines(most: int = LINES) -> str:
    """Return the first lines of the file."""
    model = pellucid.load("pellucid/capitals", dtype="float64")
    answers = sorted({q.right[0] for q in prompts()})
    out = ""
    for q in prompts(most):
        ids = model.tokenizer.encode(q.prompt)
        rejected = model.tokenizer.decode(model.generate([ids], 8)[0][:-1])
        if rejected in q.right:
            wrong = [answer for answer in answers if answer not in q.right]
            texts = [torch.tensor([model.tokenizer.encode(q.prompt + answer)]) for answer in wrong]
            logprobs = [float(model.logprobs(text)[0, len(ids) - 1 :].sum()) for text in texts]
            rejected = wrong[logprobs.index(max(logprobs))]
        out += json.dumps({"prompt": q.prompt, "chosen": q.right[0], "rejected": rejected}) + "\n"
    return out


if __name__ == "__main__":
    FILE.write_text(lines(), encoding="utf-8")
