"""Training: from a recipe to a corpus, a tokenizer, a new model, and a folder that Hugging Face's tools read.

pellucid train recipes/capitals.toml --out run
"""

from pellucid.training.pipeline import prepare_data, run_recipe

__all__ = ["prepare_data", "run_recipe"]
