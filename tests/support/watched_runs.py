"""A small run of training whose recipe has a [watch]: for what shows recorded steps."""

from pathlib import Path

import pellucid
from training import corpus_of, unmeasured

STEPS, EVERY = 12, 4
WATCHED = [1, 4, 8, 12]
PROMPT = "The capital of France is"
RECIPE = f"""
name = "film"

[model]
model_type = "gpt2"
n_embd = 16
n_layer = 2
n_head = 2
n_positions = 64

[tokenizer]
size = 300

[data]
folder = "corpus"

[train]
seed = 3
steps = {STEPS}
batch = 4
learning_rate = 1e-2
warmup = 2
save_every = 4
log_every = 100
keep = "all"

[eval]
every = 4
quiz = 10

[watch]
every = {EVERY}
first = 1
tensors = ["layers.*.attn.pattern"]
tokens = [".", "e"]
prompts = ["{PROMPT}"]
"""


def watched_run(folder: Path, recipe: str = RECIPE) -> pellucid.Run:
    """Train a small model in a new folder, and return its run. Its model is not measured and not written."""
    corpus_of(folder / "corpus", "France", "Spain")
    (folder / "film.toml").write_text(recipe, encoding="utf-8")
    with unmeasured():
        return pellucid.train(folder / "film.toml", folder / "run")
