"""What a model's tensors say: the logit lens, direct attribution, and whether the run is transformers' run."""
