"""Training: a recipe makes a corpus and its tokenizer, a model from nothing, and a folder that Hugging Face's tools read.

pellucid train recipes/capitals.toml --out run
"""

from pellucid.training.pipeline import run_recipe

__all__ = ["run_recipe"]
