"""Analyses of a model's tensors: the logit lens, direct attribution, and the comparison with transformers."""
